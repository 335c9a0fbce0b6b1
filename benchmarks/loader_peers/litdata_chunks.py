"""LitData: chunks of 64 MB, its StreamingDataLoader."""

import torch
from _peer import BATCH, crop, main, pictures
from litdata import StreamingDataLoader, StreamingDataset, optimize


def packed(item):
    path, label = item
    return {"image": path.read_bytes(), "label": label}


class Pictures(StreamingDataset):
    def __getitem__(self, index):
        item = super().__getitem__(index)
        return torch.from_numpy(crop(item["image"])), item["label"]


def prepare(source, dest):
    optimize(fn=packed, inputs=pictures(source), output_dir=str(dest), chunk_bytes="64MB", num_workers=1)


def batches(dest, workers):
    torch.set_num_threads(1)
    return StreamingDataLoader(Pictures(str(dest), shuffle=True), batch_size=BATCH, num_workers=workers)


if __name__ == "__main__":
    main(prepare, batches)
