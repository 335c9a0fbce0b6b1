"""Batches on the device from other data than lists: loaders.py shards|columns|files|mix|lengths|processes [early]

Each loop must end with the memory of the device of the loop before, also where it is left early, and no pinned memory
may be in use when the loader is closed.
"""

import gc
import itertools
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from _parts import tell_memory

from paceline.data import CenterCrop, FileDataset, Loader, Mix, ShardedDataset, Writer

SAMPLES = 400


def write_shards(folder: Path) -> Path:
    with Writer(folder) as writer:
        for number in range(SAMPLES):
            row = {"x": np.full(64, number / SAMPLES, np.float32), "label": number % 10, "size": 8 + number % 24}
            writer.write(row)
    return folder


def write_pictures(folder: Path) -> Path:
    from PIL import Image

    for number in range(64):
        place = folder / str(number % 2)
        place.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 255, (48, 48, 3), np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.jpg")
    return folder


class Lines:
    """Samples of different lengths, as lists of numbers."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.arange(8 + number % 24)


def pad(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    lengths = torch.tensor([len(one) for one in samples])
    return {"tokens": torch.nn.utils.rnn.pad_sequence(samples, batch_first=True), "lengths": lengths}


def loader_of(way: str, folder: Path) -> Loader:
    """Return a loader of a way, whose batches go to the device."""
    common = {"shuffle": True, "device": "cuda", "seed": 3}
    if way == "shards":
        return Loader(write_shards(folder / "shards"), 8, **common)
    if way == "mix":
        parts = [ShardedDataset(write_shards(folder / name)) for name in "ab"]
        return Loader(Mix(parts, [0.3, 0.7]), 16, **common)
    if way == "lengths":
        return Loader(Lines(), max_tokens=256, length=[8 + n % 24 for n in range(SAMPLES)], collate_fn=pad, **common)
    if way == "columns":
        return Loader(write_shards(folder / "shards"), max_tokens=256, length="size", **common)
    if way == "processes":
        return Loader(Lines(), max_tokens=256, length=len, collate_fn=pad, processes=2, **common)
    crop = CenterCrop(32)
    return Loader(FileDataset(write_pictures(folder / "pictures")), 8, transform=crop, threads=2, **common)


def tensors(batch) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    values = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else ()
    return [one for value in values for one in tensors(value)]


def in_use() -> tuple[int, int]:
    """Return the bytes of the device and of pinned memory that are in use."""
    gc.collect()
    torch.cuda.synchronize()
    torch.empty(1, pin_memory=True)
    return torch.cuda.memory_allocated(), torch.cuda.host_memory_stats()["active_bytes.current"]


def main(way: str, early: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        torch.cuda.set_device(torch.cuda.device_count() - 1)
        data, after = loader_of(way, Path(folder)), []
        for _ in range(6):
            batches = itertools.islice(data, 5) if early else data
            count = 0
            for batch in batches:
                found = tensors(batch)
                assert found, batch
                assert all(one.get_device() == torch.cuda.current_device() for one in found), [o.device for o in found]
                count += 1
            del batch, found, batches
            after.append(in_use())
            print(count)
        assert len({device for device, _ in after}) == 1, after
        data.close()
        assert in_use() == (0, 0), in_use()  # until then it keeps some pinned buffers
        del data
        tell_memory()


if __name__ == "__main__":
    main(sys.argv[1], "early" in sys.argv)
