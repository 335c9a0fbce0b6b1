"""The lengths of samples for loaders with `max_tokens=`."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import UsageError
from paceline.data.format.model import Column
from paceline.data.loader.settings import Settings
from paceline.data.loader.spec import LoaderSpec
from paceline.data.order.position import Position
from paceline.data.order.slices import Slice, check_steps, steps_left
from paceline.data.order.token_budget import BudgetPlan, budget_plan, budget_steps_left
from paceline.data.reading.file_dataset import FileDataset
from paceline.data.reading.sharded import ShardedDataset, missing_of

Numbers = NDArray[np.int64]


class TokenBudget:
    """The lengths of all samples and the limit of tokens in a batch."""

    def __init__(self, spec: LoaderSpec, lengths: Numbers, max_tokens: int) -> None:
        """Create a budget.

        Args:
            spec: The specification of the loader.
            lengths: The length of each sample in tokens, by number; 0 for samples that are not read.
            max_tokens: The limit of a batch, with padding.
        """
        self._spec, self._lengths, self.max_tokens = spec, lengths, max_tokens
        self._planned = lru_cache(2)(self._made)

    @property
    def digest(self) -> str:
        """A digest that identifies the dataset, the lengths and the limit in a state."""
        made = hashlib.sha256(f"{self._spec.digest} {self.max_tokens} ".encode())
        made.update(self._lengths.tobytes())
        return made.hexdigest()[:16]

    def plan(self, at: Position) -> BudgetPlan:
        """Return the batches of the whole epoch of a position."""
        return self._planned(replace(at, consumed=0))

    def _made(self, at: Position) -> BudgetPlan:
        ids = self._spec.order(at).ids(np.arange(at.samples, dtype=np.int64))
        return budget_plan(self._lengths[ids], self.max_tokens, (at.seed, at.epoch) if at.shuffle else None)


def token_budget(spec: LoaderSpec, own: Settings, batch_size: int) -> TokenBudget | None:
    """Return the token budget of a loader, or None if its batches have `batch_size` samples.

    Raises:
        UsageError: The settings cannot be combined, a sample has no length, or a sample is longer than the budget.
    """
    if own.max_tokens is None and own.length is None:
        return None
    if own.max_tokens is None or own.length is None or batch_size != 1:
        raise UsageError(
            "max_tokens= and length= belong together, in place of batch_size=: give both, such as "
            'Loader(data, max_tokens=16384, length="n_tokens")'
        )
    numbers = np.arange(len(spec.data)) if spec.numbers is None else np.unique(spec.numbers)
    lengths = np.zeros(len(spec.data), np.int64)
    lengths[numbers] = _lengths(spec.data, own.length, numbers)
    wrong = numbers[(lengths[numbers] < 1) | (lengths[numbers] > own.max_tokens)]
    if len(wrong):
        raise UsageError(
            f"sample {wrong[0]} has length {lengths[wrong[0]]:,}, which is not from 1 to max_tokens={own.max_tokens:,} "
            f"({len(wrong):,} such samples); raise max_tokens=, or leave them out with torch.utils.data.Subset"
        )
    return TokenBudget(spec, lengths, own.max_tokens)


def epoch_steps_left(budget: TokenBudget | None, at: Position, share: Slice) -> int:
    """Return how many steps are left of an epoch, the same for all ranks.

    Args:
        budget: The token budget; None for batches of a fixed number of samples.
        at: The position in the epoch.
        share: The rank.

    Raises:
        UsageError: The position is not the end of a batch.
    """
    if budget is None:
        return steps_left(at.samples, at.consumed, share)
    return budget_steps_left(budget.plan(at), at.consumed, share)


def check_epoch(budget: TokenBudget | None, at: Position, share: Slice) -> None:
    """Check that an epoch has at least one step.

    Raises:
        UsageError: No rank would get a batch.
    """
    if budget is None:
        check_steps(at.samples, share)
    elif not budget_steps_left(budget.plan(at), 0, share):
        raise UsageError(
            f"{at.samples:,} samples make too few batches of max_tokens={budget.max_tokens:,} for all ranks "
            f'({share.world:,}); use fewer ranks, a smaller max_tokens=, or ends="pad", which repeats samples'
        )


def _lengths(data: Any, length: Any, numbers: Numbers) -> Numbers:
    """Return the lengths of some samples."""
    if isinstance(length, str):
        return _of_column(data, length, numbers)
    if callable(length):
        return _whole([length(data[number]) for number in numbers.tolist()])
    found = _whole(length)
    if found.shape != (len(data),):
        raise UsageError(f"length= has shape {found.shape}; give one number for each of the {len(data):,} samples")
    return found[numbers]


def _whole(values: Any) -> Numbers:
    found = np.asarray(values)
    if not np.issubdtype(found.dtype, np.integer):
        raise UsageError(f"length= gives {found.dtype}; give whole numbers of tokens")
    return found.astype(np.int64)


def _of_column(data: Any, name: str, numbers: Numbers) -> Numbers:
    """Return the values of a column of whole numbers.

    Raises:
        UsageError: The column does not exist, or a sample has no value.
    """
    shards, files = isinstance(data, ShardedDataset), isinstance(data, FileDataset)
    columns = data.contents.columns if shards else data.columns if files else []
    column = next((one for one in columns if one.name == name and one.kind == "int"), None)
    if column is None:
        there = ", ".join(one.name for one in columns if one.kind == "int") or "none"
        raise UsageError(
            f"length={name!r} is not a column of whole numbers (there are: {there}); give one, an array with the "
            "length of each sample, or a function of a sample"
        )
    one_by_one = () if shards else numbers.tolist()
    values = _of_shards(data, column, numbers) if shards else [data.sample(number)[name] for number in one_by_one]
    lacking = [number for number, value in zip(numbers.tolist(), values, strict=True) if value is None]
    if lacking:
        raise UsageError(f"sample {lacking[0]} has no value in the column {name}; leave it out with Subset")
    return _whole(values)


def _of_shards(data: ShardedDataset, column: Column, numbers: Numbers) -> list[int | None]:
    places = data.places(numbers)
    values, missing = data.numbers(column.name, places).tolist(), missing_of(data, column, places)
    return [None if gone else value for value, gone in zip(values, missing, strict=True)]
