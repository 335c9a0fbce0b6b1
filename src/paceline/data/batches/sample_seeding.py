"""Seeds the global random generators for each sample, by seed, epoch and the number of the sample.

So what a sample draws does not depend on who makes it, or when. Where the training's own process makes samples, its
generators are given back as they were: what the training draws does not depend on its data either.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from paceline.data.batches.own_generators import restore, seed_own, states_of
from paceline.data.order.counter_rng import key_of

_SAMPLES, _BATCHES = 3, 4  # what a key is for: what a sample draws, what a user's function of a batch draws


def seed_generators(seeds: tuple[int, int], number: int, own: Sequence[Any] = ()) -> None:
    """Seed the generators of this process for a sample; of torch's, the one of the host.

    Args:
        seeds: Seed and epoch.
        number: Of the sample.
        own: Generators that the data set keeps itself.
    """
    import torch

    key = key_of(*seeds, _SAMPLES, number)
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key & 0x7FFFFFFFFFFFFFFF)
    seed_own(own, key)


def batch_getter(dataset: Any) -> Callable[[list[int]], Sequence[Any]] | None:
    """Return what gives the samples of a batch in one call, as a `DataLoader` would call it; None if there is none.

    A `Subset` has such a method even if the data set in it has none: then it is no faster, and samples are made one by
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
    """Return the samples of a batch, made in one call; None if they are to be made one by one.

    Args:
        get: As `batch_getter` returns it.
        numbers: Of the samples.
        skip: Whether a bad sample is left out: which one is bad is found out one by one.

    Raises:
        ValueError: There are more samples than numbers, or fewer.
    """
    if get is None or not numbers:
        return None
    try:
        made = list(get(numbers))
    except Exception:
        if skip:
            return None
        raise
    if len(made) != len(numbers):
        raise ValueError(f"__getitems__ of the data set returned {len(made)} samples for {len(numbers)} numbers")
    return made


@contextmanager
def own_draws(seeds: tuple[int, int] | None, own: Sequence[Any] = ()) -> Iterator[Callable[[int], None]]:
    """Give what is to be called before each sample is made; afterwards generators are what they were.

    Args:
        seeds: Seed and epoch; None: samples draw nothing, and nothing is done.
        own: Generators that the data set keeps itself.
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
    """Return the states of the generators of the process."""
    torch = sys.modules.get("torch")
    return [random.getstate(), np.random.get_state(), torch.get_rng_state() if torch is not None else None]


def same(one: list[Any], other: list[Any]) -> bool:
    """Say whether nothing was drawn from one moment to the other."""
    same_torch = one[2] is None or other[2] is None or bool((one[2] == other[2]).all())
    numpy_one, numpy_other = one[1], other[1]
    same_numpy = bool((numpy_one[1] == numpy_other[1]).all()) and numpy_one[2:] == numpy_other[2:]
    return one[0] == other[0] and same_numpy and same_torch


def transformed(batch: Any, change: Callable[[Any, Any], Any], seeds: tuple[int, int], first: int) -> Any:
    """Return a batch after the user's own function of it.

    Args:
        batch: What was made.
        change: The function, of the batch and a `torch.Generator`.
        seeds: Seed and epoch.
        first: Number of the first sample of the batch: with the seeds it seeds the generator.
    """
    import torch

    generator = torch.Generator()
    generator.manual_seed(key_of(*seeds, _BATCHES, first) & 0x7FFFFFFFFFFFFFFF)
    return change(batch, generator)
