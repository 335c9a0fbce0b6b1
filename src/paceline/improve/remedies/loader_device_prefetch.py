"""loader.device_prefetch: the next batch is copied to the GPU during the current step."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

PAGE = """
The loader copies the next batch from pinned memory to the GPU on a separate CUDA stream, while the model computes on
the current batch. The program's own `.to(device)` then has nothing to copy. GPU memory contains one more batch. `tune`
proposes this change if copies to the device take time. A program that first uses its batches on the CPU fails with this
setting; `tune` then reports the trial as failed.

## Safety class

Exact: training gets the same batches in the same order. Resampled if the training process itself draws random numbers
for samples, because it then draws those for the next batch before the random numbers of the model.

## What it sets

`loader.device_prefetch = true` and `loader.pin_memory = true`.

## How it is confirmed

Confirmed when the loader returns a batch that was copied ahead of time. Without a CUDA device, the setting has no
effect.

## In the source

Write an iterator around the loader that copies the next batch with `non_blocking=True` under `with
torch.cuda.stream(side):`. Before the program uses the batch, the iterator calls
`torch.cuda.current_stream().wait_stream(side)` and `tensor.record_stream(torch.cuda.current_stream())`.
"""


def _candidates(situation: Situation) -> Sequence[Candidate]:
    predicted, loader = situation.gain_of("loader.device_prefetch"), situation.loader
    if predicted is None or loader is None or situation.setting("loader", "device_prefetch"):
        return []
    return [
        Candidate(
            remedy="loader.device_prefetch",
            recipe={"loader": {"pin_memory": True, "device_prefetch": True}},
            safety="resampled" if loader.draws_random and not loader.workers else "exact",
            predicted=predicted,
            why=f"copies to the device take {situation.facts.shares['transfer']:.0%} of the time",
        )
    ]


REMEDY = Remedy(id="loader.device_prefetch", page=PAGE, candidates=_candidates)
