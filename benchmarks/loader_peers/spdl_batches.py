"""SPDL's pipeline at its best for this work: a job for each batch, written straight into one array."""

import os
import random

import numpy as np
import torch
from _peer import BATCH, SIZE, crop, main, pictures
from spdl.pipeline import PipelineBuilder


def prepare(source, dest):
    os.symlink(source.resolve(), dest)


def batches(dest, workers):
    files = pictures(dest)
    random.shuffle(files)
    jobs = [files[begin : begin + BATCH] for begin in range(0, len(files) - BATCH + 1, BATCH)]

    def batch(job):
        made = np.empty((len(job), SIZE, SIZE, 3), np.uint8)
        for slot, (path, _) in zip(made, job):
            crop(path.read_bytes(), slot)
        return torch.from_numpy(made).permute(0, 3, 1, 2), torch.tensor([label for _, label in job])

    if not workers:
        return map(batch, jobs)
    pipeline = (
        PipelineBuilder()
        .add_source(jobs)
        .pipe(batch, concurrency=workers)
        .add_sink(2 * workers)
        .build(num_threads=workers)
    )
    return running(pipeline)


def running(pipeline):
    with pipeline.auto_stop():
        yield from pipeline


if __name__ == "__main__":
    main(prepare, batches)
