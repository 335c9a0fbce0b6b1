"""Seeding of the global random generators for each sample, from the seed, the epoch and the number of the sample.

So the random numbers of a sample do not depend on the worker or the time. If the training's own process makes samples,
its generators are restored afterwards, so the random numbers of the training do not depend on the data.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from paceline.data.batches.faults import as_runtime_error
from paceline.data.batches.own_generators import restore, seed_own, states_of
from paceline.data.order.counter_rng import key_of

_SAMPLES, _BATCHES = 3, 4  # purposes of keys: random numbers of samples, and of the user's batch transform


def seed_generators(seeds: tuple[int, int], number: int, own: Sequence[Any] = ()) -> None:
    """Seed the generators of Python, NumPy and torch (CPU) in this process for a sample.

    Args:
        seeds: The seed and the epoch.
        number: The number of the sample.
        own: The dataset's own generators, from `own_generators`.
    """
    import torch

    key = key_of(*seeds, _SAMPLES, number)
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key & 0x7FFFFFFFFFFFFFFF)
    seed_own(own, key)


def batch_getter(dataset: Any) -> Callable[[list[int]], Sequence[Any]] | None:
    """Return a dataset's method `__getitems__`, which returns all samples of a batch in one call; None without it.

    A `Subset` has this method even if the dataset inside has none. Then None is returned, and samples are made one by
    one, so that each is seeded by its own number.
    """
    found = getattr(dataset, "__getitems__", None)
    inside = dataset
    while (
        found is not None
        and type(inside).__name__ == "Subset"
        and type(inside).__module__ == "torch.utils.data.dataset"
    ):
        inside = inside.dataset
        found = found if getattr(inside, "__getitems__", None) is not None else None
    return found if callable(found) else None


def at_once(get: Callable[[list[int]], Sequence[Any]] | None, numbers: list[int], *, skip: bool) -> list[Any] | None:
    """Return the samples of a batch from one call, or None if they must be made one by one.

    Args:
        get: The method, from `batch_getter`; None gives None.
        numbers: The numbers of the samples.
        skip: Whether bad samples are skipped. An error then gives None, as only single calls show which sample is bad.

    Raises:
        ValueError: The method returned another number of samples.
    """
    if get is None or not numbers:
        return None
    try:
        made = list(get(numbers))
    except Exception as error:
        if skip:
            return None
        raise as_runtime_error(f"samples {numbers[0]} to {numbers[-1]}", error)  # noqa: B904 - the same, or chained
    if len(made) != len(numbers):
        raise ValueError(f"__getitems__ of the data set returned {len(made)} samples for {len(numbers)} numbers")
    return made


@contextmanager
def own_draws(seeds: tuple[int, int] | None, own: Sequence[Any] = ()) -> Iterator[Callable[[int], None]]:
    """Return a context with a function that seeds all generators for a sample; at the end the generators are restored.

    Args:
        seeds: The seed and the epoch; None if samples draw no random numbers, and then nothing is seeded.
        own: The dataset's own generators, from `own_generators`.

    Yields:
        The function. It takes the number of the sample, and is to be called before the sample is made.
    """
    if seeds is None:
        yield lambda number: None
        return
    import torch

    before, own_before = states(), states_of(own)
    try:
        yield lambda number: seed_generators(seeds, number, own)
    finally:
        restore(own, own_before)
        random.setstate(before[0])
        np.random.set_state(before[1])
        if before[2] is not None:
            torch.default_generator.set_state(before[2])


def states() -> list[Any]:
    """Return the states of the global generators of Python, NumPy and torch (None if torch is not imported)."""
    torch = sys.modules.get("torch")
    return [random.getstate(), np.random.get_state(), torch.get_rng_state() if torch is not None else None]


def same(one: list[Any], other: list[Any]) -> bool:
    """Return whether two results of `states` are equal, so that no random number was drawn in between."""
    same_torch = one[2] is None or other[2] is None or bool((one[2] == other[2]).all())
    numpy_one, numpy_other = one[1], other[1]
    same_numpy = bool((numpy_one[1] == numpy_other[1]).all()) and numpy_one[2:] == numpy_other[2:]
    return one[0] == other[0] and same_numpy and same_torch


def transformed(batch: Any, change: Callable[[Any, Any], Any], seeds: tuple[int, int], first: int) -> Any:
    """Apply the user's batch transform and return its result.

    Args:
        batch: The batch.
        change: The transform; it gets the batch and a `torch.Generator`.
        seeds: The seed and the epoch.
        first: The number of the first sample of the batch, which together with `seeds` seeds the generator.
    """
    import torch

    generator = torch.Generator()
    generator.manual_seed(key_of(*seeds, _BATCHES, first) & 0x7FFFFFFFFFFFFFFF)
    return change(batch, generator)
