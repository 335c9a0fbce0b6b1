"""The cost of a cache of decoded images, and what it would save."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from paceline.data.order.ranks import ranks_on_host
from paceline.data.reading.sharded import ShardedDataset
from paceline.data.reading.stages import Spent
from paceline.hardware.host import available_bytes
from paceline.hardware.operating_system import LocalFiles

_OF_FREE = 0.4  # of what is free, that a cache may take
_PAYS = 0.3  # share of the CPU time of a sample, that decoding has to take
_LOOKED_AT = 4  # shards by which the size of pictures is estimated


@dataclass(frozen=True, kw_only=True)
class CacheOffer:
    """A cache of all decoded pictures: its cost, and what it saves from the second epoch on."""

    bytes: int  # of all of them, for each rank that keeps its own
    free_memory_bytes: int | None  # of this host; None: it does not say
    free_disk_bytes: int | None  # where the data set lies; None: in a store
    fits: tuple[str, ...]  # of "ram" and "disk"; what takes at most 40% of what is free
    saves_cpu_s: float  # of a sample: what decoding takes
    of_cpu_s: float  # of a sample: all stages
    disk_bytes_per_s: float  # that a disk has to give for each thread, to be faster than decoding


def cache_offer(
    dataset: ShardedDataset, column: str, size: int | None, spent: Mapping[str, Spent]
) -> CacheOffer | None:
    """Return what a cache costs and saves; None where decoding takes little, or nothing is known yet.

    Args:
        dataset: Whose pictures would be kept.
        column: Of pictures.
        size: Pixels on a side of what would be kept, where crops draw nothing at random; None: whole pictures are kept.
        spent: What stages took so far.
    """
    costs = {name: one.cpu_s / one.samples for name, one in spent.items() if one.samples and name != "copy"}
    decode, whole = spent.get("decode"), sum(costs.values())
    if decode is None or not decode.samples or costs["decode"] < _PAYS * whole:
        return None
    each = _bytes_of_picture(dataset, column) if size is None else 3.0 * size * size
    if each is None:
        return None
    wanted = int(each * len(dataset))
    memory, disk = available_bytes(LocalFiles()), _free_disk(dataset)
    fits = [
        name
        for name, needed, free in (("ram", wanted * ranks_on_host(), memory), ("disk", wanted, disk))
        if free is not None and needed <= _OF_FREE * free
    ]
    return CacheOffer(
        bytes=wanted,
        free_memory_bytes=int(memory) if memory is not None else None,
        free_disk_bytes=disk,
        fits=tuple(fits),
        saves_cpu_s=costs["decode"],
        of_cpu_s=whole,
        disk_bytes_per_s=each / (decode.wall_s / decode.samples),
    )


def _bytes_of_picture(dataset: ShardedDataset, column: str) -> float | None:
    """Return the bytes of a decoded picture, on average of some shards that were read; None where no size is known."""
    arrays = [index.arrays for index in list(dataset.indexes.values())[:_LOOKED_AT]]
    if not arrays:
        return None
    pixels = np.concatenate([one[f"{column}.height"].astype(float) * one[f"{column}.width"] for one in arrays])
    known = pixels[pixels > 0]
    return 3.0 * float(known.mean()) if len(known) else None


def _free_disk(dataset: ShardedDataset) -> int | None:
    if dataset.remote is not None:
        return None
    try:
        return shutil.disk_usage(dataset.folder).free
    except OSError:
        return None
