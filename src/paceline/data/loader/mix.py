"""A mixture of datasets by weights: `Loader(Mix(["code/", "text/"], [0.3, 0.7]), 32, shuffle=True)`."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from paceline.core.errors import UsageError
from paceline.data.loader.selection import Numbers, Selection, block_starts, digest_of, selection_of
from paceline.data.order.mixed import MixedOrder, MixedPart
from paceline.data.order.order import EpochOrder, SelectedOrder, Shuffle
from paceline.data.reading.merged import MergedShards, MergedTokens
from paceline.data.reading.sharded import ShardedDataset
from paceline.data.reading.token_dataset import TokenDataset


class Mix:
    """Datasets that a `Loader` mixes by weights, sample by sample.

    Each dataset keeps its own order, which is that of a loader of this dataset alone with the same seed. Each sample
    comes once in each pass over its dataset. A dataset that is exhausted starts its next pass, in the order of the next
    epoch. An epoch of the loader has as many samples as all datasets together; the next epoch continues the passes.
    """

    def __init__(self, datasets: Sequence[Any], weights: Sequence[float] | None = None) -> None:
        """Set the datasets and their weights.

        Args:
            datasets: Datasets of one kind: folders of shards on this machine or `ShardedDataset`s, with the same
                columns; `TokenDataset`s with the same length and tokenizer; or any `Dataset`s with `__len__` and
                `__getitem__`. Each may be a `torch.utils.data.Subset`.
            weights: The share of samples of each dataset, in any unit; None weighs by their numbers of samples.

        Raises:
            UsageError: A dataset is empty, or the weights are not one positive number for each dataset.
        """
        self.datasets = [ShardedDataset(one) if isinstance(one, str | os.PathLike) else one for one in datasets]
        self._selections = [selection_of(one) for one in self.datasets]
        sizes = [len(one) for one in self.datasets] if self.datasets else []
        if not sizes or not all(sizes):
            raise UsageError("a Mix needs data sets that have samples; give one or more")
        given = list(map(float, sizes if weights is None else weights))
        if len(given) != len(sizes) or not all(math.isfinite(one) and one > 0 for one in given):
            raise UsageError(
                f"weights are {given} for {len(sizes)} data sets; give a number above 0 for each, or leave a data set "
                "out"
            )
        self.weights = [one / sum(given) for one in given]
        self._sizes, self._given = sizes, given

    def __len__(self) -> int:
        """Return the number of samples in an epoch: those of all datasets together."""
        return sum(self._sizes)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.datasets, self._given)

    @cached_property
    def data(self) -> Any:
        """All datasets, taken out of their subsets, one after the other as one dataset.

        Raises:
            UsageError: The datasets differ in kind, columns, length or tokenizer.
        """
        parts = [one.data for one in self._selections]
        kinds = [next((k for k in (ShardedDataset, TokenDataset) if isinstance(part, k)), None) for part in parts]
        if len(set(kinds)) > 1:
            names = ", ".join(type(part).__name__ for part in parts)
            raise UsageError(
                f"a Mix has data sets of one kind, and these are {names}; convert the others to shards first"
            )
        if kinds[0] is ShardedDataset:
            return MergedShards(parts)
        if kinds[0] is TokenDataset:
            return MergedTokens(parts)
        wrong = [type(part).__name__ for part in parts if not hasattr(part, "__getitem__")]
        if wrong:
            raise UsageError(f"{wrong[0]} has no __getitem__, which shuffling needs; convert it to shards")
        from torch.utils.data import ConcatDataset

        return ConcatDataset(parts)

    @property
    def numbers(self) -> Numbers | None:
        """The numbers of the samples in `data` that subsets select; None for all."""
        if all(one.numbers is None for one in self._selections):
            return None
        found = [np.arange(len(data)) if numbers is None else numbers for data, numbers in self._selections]
        return np.concatenate([first + own for first, own in zip(self._firsts, found, strict=True)]).astype(np.int64)

    @property
    def digest(self) -> str:
        """A SHA-256 of the sizes and weights of the datasets, and of the numbers of the selected samples."""
        told = repr((self._sizes, self.weights)) + "".join(digest_of(one.numbers) for one in self._selections)
        return hashlib.sha256(told.encode()).hexdigest()

    @property
    def _firsts(self) -> list[int]:
        """The number in `data` of the first sample of each dataset."""
        lengths = [len(one.data) for one in self._selections]
        return [sum(lengths[:place]) for place in range(len(lengths))]

    def order(self, shuffle: Shuffle | None, seed: int, epoch: int) -> MixedOrder:
        """Return the order of an epoch.

        Args:
            shuffle: The shuffle within each dataset; None keeps its stored order.
            seed: The seed of the mixture.
            epoch: The epoch of the loader, from 0.
        """
        blocks = [block_starts(one.data) for one in self._selections]
        parts = [
            MixedPart(size, first, _orders(own, selection, size, shuffle))
            for size, first, own, selection in zip(self._sizes, self._firsts, blocks, self._selections, strict=True)
        ]
        together = np.concatenate([first + own for first, own in zip(self._firsts, blocks, strict=True)])
        return MixedOrder(parts, self.weights, together, seed, epoch)


def _orders(blocks: Numbers, selection: Selection, samples: int, shuffle: Shuffle | None) -> Any:
    """Return a function that returns the order of a dataset alone in a given epoch."""

    def order(epoch: int) -> EpochOrder:
        if selection.numbers is not None:
            return SelectedOrder(blocks, selection.numbers, shuffle, epoch)
        return EpochOrder(blocks, samples, shuffle, epoch)

    return order
