"""The samples that a loader reads: all of a dataset, or those of a `torch.utils.data.Subset`."""

from __future__ import annotations

import hashlib
import sys
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import UsageError
from paceline.data.reading.file_dataset import FileDataset
from paceline.data.reading.sharded import ShardedDataset
from paceline.data.reading.token_dataset import TokenDataset

Numbers = NDArray[np.int64]
_TOKEN_BLOCK = 512  # samples of tokens in a block of the shuffle


class Selection(NamedTuple):
    """A dataset, and the numbers of the samples to read."""

    data: Any
    numbers: Numbers | None  # None for all


def selection_of(data: Any) -> Selection:
    """Return the dataset inside nested subsets and the numbers of the selected samples; not of other datasets.

    Any other dataset is returned unchanged, with its subsets.

    Raises:
        UsageError: A subset has an index that does not exist, or is empty.
    """
    torch = sys.modules.get("torch")  # without torch there is no Subset
    subset = getattr(getattr(torch, "utils", None), "data", None)
    chain, below = [], data
    while subset is not None and type(below) is subset.Subset:
        chain.append(below.indices)
        below = below.dataset
    if not chain or not isinstance(below, ShardedDataset | TokenDataset | FileDataset):
        return Selection(data, None)
    numbers = np.arange(len(below), dtype=np.int64)
    for indices in reversed(chain):
        numbers = _taken(numbers, np.asarray(indices))
    if not len(numbers):
        raise UsageError("the subset has no samples; give it the number of one at least")
    return Selection(below, numbers)


def block_starts(data: Any) -> Numbers:
    """Return the number of the first sample of each block of a dataset, from 0 and ascending."""
    if isinstance(data, ShardedDataset):
        return data.blocks["first"].astype(np.int64)
    if isinstance(data, FileDataset) and data.group_starts is not None:
        return data.group_starts
    size = _TOKEN_BLOCK if isinstance(data, TokenDataset) else 1  # 1: a full shuffle
    return np.arange(0, len(data), size, dtype=np.int64)


def blocks_mixed(data: Any) -> int | None:
    """Return the default number of blocks that are shuffled together, or None for that of shards."""
    return data.window if isinstance(data, FileDataset) else None


def digest_of(numbers: Numbers | None) -> str:
    """Return a SHA-256 of sample numbers, or "" for None (all samples)."""
    return "" if numbers is None else hashlib.sha256(numbers.tobytes()).hexdigest()


def _taken(numbers: Numbers, indices: NDArray[Any]) -> Numbers:
    if len(indices) and not np.issubdtype(indices.dtype, np.integer):
        raise UsageError(f"the indices of a subset are {indices.dtype}; they must be whole numbers")
    wrong = indices[(indices < -len(numbers)) | (indices >= len(numbers))]
    if len(wrong):
        raise UsageError(f"a subset has sample {wrong[0]}, but there are {len(numbers):,} samples")
    return numbers[indices.astype(np.int64)]
