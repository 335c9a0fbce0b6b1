"""Batches whose samples have no numbers: those of a generator, or of a `DataLoader` of an `IterableDataset`.

Each rank reads whole batches, with the random numbers of rank 0, and takes its samples of them. So the batches are
those of one process. A checkpoint has the number of batches that were read. A resumed run reads them again, with the
random numbers of the beginning of the epoch, and does not train on them.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from typing import Any

from paceline.core.errors import UsageError
from paceline.train.batch_samples import count_samples, select_rows
from paceline.train.batches.order import part_of_indices
from paceline.train.checkpoints.loader_positions import SEVERAL_LOOPS
from paceline.train.ranks import agreement, random_states
from paceline.train.ranks.world import World, state_of, text_of


class WholeBatches:
    """This rank's part of the batches of an iterable, with its position."""

    def __init__(self, batches: Any, world: World, micro_batches: int) -> None:
        """Store the arguments.

        Args:
            batches: An iterable of whole batches: tensors with samples in dimension 0, in tuples, lists and dicts.
            world: The ranks.
            micro_batches: The number of micro-batches of each rank.
        """
        self.options = getattr(batches, "num_workers", None)
        self.position, self.was_read = self, False
        self._batches = weakref.ref(batches)
        self._name = type(batches).__name__
        self._world, self._micro_batches = world, micro_batches
        self._why: str | None = None
        self._loops = self._taken = 0
        self._begun: random_states.State | None = None  # random states before this epoch
        self._skip = 0  # batches of the next epoch that were already used
        self._begun_again: random_states.State | None = None

    def __len__(self) -> int:
        return len(self._given())

    def __iter__(self) -> Iterator[Any]:
        self._loops += 1
        loop, self.was_read = self._loops, True
        iterator = self._begin()
        self._taken = taken = self._skip
        self._skip, self._begun_again = 0, None
        while True:
            batch = self._read(iterator)
            taken += 1
            if self._world.mesh is not None:
                self._check_same(None if batch is self else batch)
            if batch is self:
                break
            if loop != self._loops:
                self._why = SEVERAL_LOOPS
            self._taken = taken
            yield self._select(batch)
        self._taken = 0

    def _given(self) -> Any:
        """Return the program's iterable; whoever loops over the batches keeps it alive."""
        return self._batches()

    def _begin(self) -> Iterator[Any]:
        """Begin an epoch, and read the batches that were already used. Reading them does not change random states."""
        own = _states()
        self._begun = self._begun_again or self._of_rank_0(own)
        if not self._skip and self._world.mesh is None:
            return iter(self._given())
        random_states.put(self._begun)
        iterator = iter(self._given())
        for _ in range(self._skip):
            next(iterator, None)
        if self._skip or self._world.sample_part:
            random_states.put(own)
        return iterator

    def _read(self, iterator: Iterator[Any]) -> Any:
        """Read the next batch with the random numbers of rank 0; a collective. At the end, return this object."""
        if self._world.mesh is None:
            return next(iterator, self)
        own = _states()
        random_states.put(self._of_rank_0(own))
        batch = next(iterator, self)
        if self._world.sample_part:
            random_states.put(own)
        return batch

    def _of_rank_0(self, own: random_states.State) -> random_states.State:
        if self._world.mesh is None:
            return own
        import torch

        found = [own if self._world.rank == 0 else None]
        with random_states.apart():
            torch.distributed.broadcast_object_list(found, src=0)
        return found[0] or own

    def _check_same(self, batch: Any) -> None:
        """Raise a UsageError if the ranks read different batches; a collective."""
        if agreement.is_same(agreement.digest(batch), self._world.everyone):
            return
        raise UsageError(
            f"ranks read different batches from {self._name}: it draws from a generator with another seed on each "
            "rank, gives each rank other samples, or ends earlier on some ranks. Let it yield the same whole batches "
            "on all ranks; the engine selects the samples of each rank"
        )

    def _select(self, batch: Any) -> Any:
        """Return this rank's samples of a batch."""
        layout = self._world.layout
        if self._world.mesh is None or layout.samples == 1:
            return batch
        size = count_samples(batch)
        if not size:
            raise UsageError(
                f"engine.loader() cannot split a batch of type {type(batch).__name__}, which has no tensors and no "
                "lists; yield tensors with samples in dimension 0"
            )
        indices = part_of_indices(list(range(size)), self._world.sample_part, layout.samples, self._micro_batches)
        return select_rows(batch, size, indices)

    def state(self) -> dict[str, Any]:
        """Return the position in a form that JSON can store."""
        begun = None
        if self._taken and self._begun is not None:
            begun = {**self._begun, "cpu": text_of(self._begun["cpu"])}
        return {"taken": self._taken, "why": self._why, "begun_whole": json.dumps(begun)}

    def follow(self, earlier: Any) -> None:
        """Do nothing: a new iterable begins a new epoch."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a position.

        Args:
            state: As `state` returned it.

        Raises:
            UsageError: The position is of another kind of loader, or the run cannot resume there.
        """
        if "begun_whole" not in state:
            raise UsageError(
                f"the checkpoint was saved with a DataLoader or paceline.data.Loader in the place of this "
                f"{self._name}; pass the loaders to engine.loader() in the same order as in the run that saved it"
            )
        if state["why"]:
            raise UsageError(f"the checkpoint was saved after {state['taken']} batches of an epoch, and {state['why']}")
        begun = json.loads(state["begun_whole"])
        self._begun_again = None if begun is None else {**begun, "cpu": state_of(begun["cpu"])}
        self._skip = self._taken = int(state["taken"])
        self._begun = self._begun_again


def _states() -> random_states.State:
    """Return the random states that the iterable can draw from: of torch on the CPU, NumPy and Python."""
    import torch

    return {"cpu": torch.get_rng_state(), **random_states.of_host()}
