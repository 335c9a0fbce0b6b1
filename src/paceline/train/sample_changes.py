"""Refuses a data set whose samples depend on the samples before, such as one that counts what was read.

On several ranks with other samples, each rank reads only its part of a batch, and would get other samples than one
process. Checked are the first two batches of each loader without workers. Random numbers do not count: each part of the
samples has its own stream. With workers, each worker has its own copy of the data set, on one process too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from paceline.core.errors import UsageError
from paceline.train.ranks.world import World
from paceline.train.unmodified.reading.changes import FIRST_BATCHES, RANDOM_GENERATOR, changes, state_of


class SampleChanges:
    """Watches the first batches of one loader.

    Args:
        loader: A `DataLoader`.
        world: The ranks.
    """

    def __init__(self, loader: Any, world: World) -> None:
        self._dataset, self._layout = loader.dataset, world.layout
        self._left = 0 if loader.num_workers or world.layout.samples == 1 else FIRST_BATCHES

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Return a context in which the next batch is read.

        Raises:
            UsageError: Reading the batch changed the data set.
        """
        if not self._left:
            yield
            return
        import torch

        before = state_of(torch, self._dataset)
        yield
        found = changes(before, state_of(torch, self._dataset), is_first=self._left == FIRST_BATCHES)
        self._left -= 1
        name = next((name for name in found if name != RANDOM_GENERATOR), None)
        if name is not None:
            raise UsageError(
                f"reading a sample changes {name}; with {self._layout}, each rank reads only its part of a batch, so "
                "samples that depend on it would not be those of one process; make samples independent of each other, "
                "or, if they are, set checks.samples = false"
            )
