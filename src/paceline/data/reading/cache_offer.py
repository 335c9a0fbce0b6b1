"""Estimate of a cache of decoded images: the memory or disk space that it needs, and the CPU time that it saves."""

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

_OF_FREE = 0.4  # the share of free memory or disk space that a cache may use
_PAYS = 0.3  # the least share of decoding in the CPU time of a sample
_LOOKED_AT = 4  # shards from which the size of images is estimated


@dataclass(frozen=True, kw_only=True)
class CacheOffer:
    """A cache of all decoded images: its size, and the time that it saves from the second epoch on."""

    bytes: int  # of all images; in memory, each rank needs as much
    free_memory_bytes: int | None  # on this host; None if unknown
    free_disk_bytes: int | None  # on the disk of the dataset; None if it is in a store
    fits: tuple[str, ...]  # "ram" and "disk", if the cache needs at most 40% of the free bytes
    saves_cpu_s: float  # per sample: the time of decoding
    of_cpu_s: float  # per sample: the time of all stages
    disk_bytes_per_s: float  # per thread; a slower disk is slower than decoding


def cache_offer(
    dataset: ShardedDataset, column: str, size: int | None, spent: Mapping[str, Spent]
) -> CacheOffer | None:
    """Return the size and saving of a cache, or None if decoding takes little time or the times are not known yet.

    Args:
        dataset: The dataset whose images would be cached.
        column: The column of images.
        size: The side of cached crops in pixels, for crops without random numbers; None to cache whole images.
        spent: The time of each stage so far.
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
    """Return the mean bytes of a decoded image in shards whose index was read, or None if no size is known."""
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
