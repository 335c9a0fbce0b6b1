"""Description of a dataset for `paceline data inspect`: columns, shards and blocks, and how well a shuffle mixes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.core import units
from paceline.data.format.image_modes import EACH
from paceline.data.format.model import Column
from paceline.data.format.tokens import TokenContents
from paceline.data.order.order import EpochOrder, Numbers, Shuffle, shuffle_of
from paceline.data.reading.sharded import ShardedDataset

_BATCHES = 200  # that are sampled
_MOST_CLASSES = 8
_ORDER = {True: "shuffled", False: "in their original order"}


def describe(dataset: ShardedDataset) -> list[str]:
    """Return lines of text about a dataset: its size, shards and blocks, its mixing, and its columns."""
    contents = dataset.contents
    size = sum(shard.bytes for shard in contents.shards)
    lines = [
        f"{dataset.address}: {contents.samples:,} samples, {units.size(size)}, shards: {len(contents.shards):,}",
        f"{len(dataset.blocks):,} blocks; samples on disk are {_ORDER[bool(contents.made.get('mixed'))]}",
    ]
    lines.append(_mixing(dataset))
    lines += [line for column in contents.columns for line in _column(dataset, column)]
    if contents.classes:
        shown = ", ".join(contents.classes[:_MOST_CLASSES])
        more = ", ..." if len(contents.classes) > _MOST_CLASSES else ""
        lines.append(f"{len(contents.classes):,} classes: {shown}{more}")
    return lines


def describe_tokens(folder: Path, contents: TokenContents) -> list[str]:
    """Return lines of text about a folder of tokens."""
    size = contents.tokens * np.dtype(contents.dtype).itemsize
    return [
        f"{folder}: {contents.tokens:,} tokens of {contents.documents:,} documents, {units.size(size)}",
        f"token ids below {contents.vocabulary:,} ({contents.dtype}), tokenizer {contents.tokenizer}; "
        f"id {contents.end} ends a document",
    ]


def _mixing(dataset: ShardedDataset) -> str:
    found = mixing_of(dataset.blocks["first"].astype(np.int64), len(dataset), shuffle_of(0))
    return (
        f"with shuffle=True, a batch of {found.batch} comes from {found.blocks:.0f} blocks (a perfect shuffle: "
        f"{found.perfect:.0f}); correlation of two epochs {abs(found.epochs_alike):.2f}"
    )


def _column(dataset: ShardedDataset, column: Column) -> list[str]:
    arrays = [dataset.index(number).arrays for number in range(len(dataset.contents.shards))]
    there = np.concatenate([_is_there(column, own) for own in arrays])
    gaps = f"; missing in {(~there).sum():,} of {len(there):,} samples" if not there.all() else ""
    if column.is_number:
        values = np.concatenate([own[f"{column.name}.value"] for own in arrays])[there]
        return [f"{column.name} ({column.kind}): {_span(values)}{gaps}"]
    lengths = np.concatenate([own[f"{column.name}.length"] for own in arrays])[there]
    suffixes = Counter(one.decode() for own in arrays for one in own[f"{column.name}.suffix"].tolist() if one)
    kinds = ", ".join(f"{count:,} {suffix}" for suffix, count in suffixes.most_common())
    if not len(lengths) or not there.any():
        return [f"{column.name} ({column.kind}): missing in all samples"]
    line = f"{column.name} ({column.kind}): {kinds}; {units.size(float(lengths.mean()))} (mean){gaps}"
    if column.kind != "image":
        return [line]
    if column.mode:
        line += "; each image has a mode of its own" if column.mode == EACH else f"; mode {column.mode}"
        line += ", and each image has a palette of its own" * (column.palette == EACH)
    heights, widths = (np.concatenate([own[f"{column.name}.{key}"] for own in arrays]) for key in ("height", "width"))
    known = heights > 0
    if known.any():
        line += f", {np.median(widths[known]):.0f} x {np.median(heights[known]):.0f} pixels (median)"
    parts = np.concatenate([np.diff(own[f"{column.name}.first_interval"]) for own in arrays])
    cut = int((parts > 0).sum())
    return [line, f"{cut:,} of {int(there.sum()):,} images can be decoded partially"]


def _is_there(column: Column, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Return a boolean for each sample of a shard: whether the sample has a value in the column."""
    if not column.is_number:
        return np.asarray(arrays[f"{column.name}.suffix"] != b"")
    missing = arrays.get(f"{column.name}.missing")
    return np.ones(len(arrays[f"{column.name}.value"]), bool) if missing is None else ~missing.astype(bool)


def _span(values: NDArray[Any]) -> str:
    """Return the smallest and the largest number as text. NaN values are counted separately."""
    numbers = values[~np.isnan(values)]
    nans = f", NaN in {len(values) - len(numbers):,} samples" if len(numbers) < len(values) else ""
    return f"{numbers.min()} to {numbers.max()}{nans}" if len(numbers) else "NaN only"


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """How well a shuffle mixes a dataset."""

    batch: int  # samples of a batch
    blocks: float  # the mean number of blocks in a batch
    perfect: float  # the same for a shuffle of all samples
    epochs_alike: float  # correlation of the positions of samples in two epochs; 0 is ideal


def mixing_of(first: Numbers, samples: int, shuffle: Shuffle | None, batch: int = 64) -> Mixing:
    """Return how well a shuffle mixes, from some batches of an epoch and from two epochs.

    Args:
        first: The number of the first sample of each block.
        samples: The number of samples in the dataset.
        shuffle: The parameters of the shuffle; None for no shuffle.
        batch: The samples of a batch.
    """
    one, other = (EpochOrder(first, samples, shuffle, epoch).ids(np.arange(samples)) for epoch in (0, 1))
    batch = min(batch, samples)
    begins = np.linspace(0, samples - batch, min(_BATCHES, max(1, samples // batch))).astype(np.int64)
    blocks = np.searchsorted(first, one, side="right")
    sizes = np.diff(np.append(first, samples)) / samples
    return Mixing(
        batch=batch,
        blocks=float(np.mean([len(np.unique(blocks[begin : begin + batch])) for begin in begins])),
        perfect=float((1 - (1 - sizes) ** batch).sum()),
        epochs_alike=_alike(one, other),
    )


def _alike(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """Return the correlation of the positions of samples in two orders."""
    if len(one) < 2:
        return 1.0
    places = [np.argsort(order, kind="stable") for order in (one, other)]
    return float(np.corrcoef(places[0], places[1])[0, 1])
