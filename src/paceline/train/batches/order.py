"""Order and position of the batches of a `DataLoader` on several ranks, with resume in the middle of an epoch.

All ranks iterate over the same batches, drawn with the random numbers of rank 0, and each rank loads its part of each
batch. The position of a loader is the random state before the epoch and the number of batches since then: a resumed
run, on any number of ranks, draws the same order and skips the batches already used without reading them. This holds
for torch's own samplers, which draw only from torch. Samplers of the user can also draw from NumPy or Python: all ranks
start from rank 0's states. The ranks compare a checksum of the indices: a program can change a sampler, such as the
weights of a `WeightedRandomSampler`, and samplers of the user can have other generators.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from paceline.core.errors import UsageError
from paceline.train.batch_samples import select_rows
from paceline.train.checkpoints.loader_positions import SEVERAL_LOOPS, BatchPosition
from paceline.train.ranks import agreement, random_states
from paceline.train.ranks.world import World, state_of

Drawn = tuple[Any, Any]  # the state of torch's generator, and that of the sampler's own generator or None


class Order:
    """The batches that one process would draw, each with its number in the epoch."""

    def __init__(self, batches: Any, world: World) -> None:
        self._batches = batches
        self._world = world
        self.generator = getattr(getattr(batches, "sampler", None), "generator", None)
        self.begun: Drawn | None = None  # random state before this epoch
        self.is_whole = False  # whether each rank reads whole batches, with the random numbers of rank 0
        self.checksum = 0  # of all indices so far, also of earlier epochs; used on several ranks only
        self.skip = 0  # batches of the next epoch that were already used
        self.begun_again: Drawn | None = None  # random state before the next epoch, if it is resumed

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def sampler(self) -> Any:
        """The sampler, or the batch sampler if the program defines one."""
        from torch.utils.data import BatchSampler

        return self._batches.sampler if type(self._batches) is BatchSampler else self._batches

    def length(self) -> int | None:
        """Return the number of batches per epoch, or None if the batch sampler has no length."""
        with suppress(TypeError):
            return len(self)
        return None

    def differing_names(self) -> list[str]:
        """Return the names of the sampler's attributes that differ between ranks; a collective."""
        import torch

        own = {name: agreement.digest(value) for name, value in vars(self.sampler).items()}
        every: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(every, own)
        return [name for name in own if any(each.get(name) != every[0].get(name) for each in every)]

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        import torch

        if self._world.mesh is not None:
            yield from self._on_ranks()
            return
        skip, own = self.skip, torch.get_rng_state()
        self.begun = self.begun_again or self.drawn()
        self.skip, self.begun_again = 0, None
        self._draw_from(self.begun)
        iterator = iter(self._batches)
        first = next(iterator, None)
        if skip:
            torch.set_rng_state(own)
        if first is not None:
            numbered = enumerate(chain([first], iterator))
            yield from ((number, list(batch)) for number, batch in numbered if number >= skip)

    def _on_ranks(self) -> Iterator[tuple[int, list[int]]]:
        """Yield the batches that rank 0 draws; other random draws during the epoch do not affect the order."""
        skip, own = self.skip, self.stream()
        begun, host = self.of_rank_0((self.begun_again or self.drawn(), random_states.of_host()))
        self.begun, self.skip, self.begun_again = begun, 0, None
        self.checksum = agreement.digest(self.length(), self.checksum)
        self._draw_from(begun)
        random_states.put(host)
        iterator = iter(self._batches)
        batch, stream = next(iterator, None), random_states.Stream(self.stream(), self._world.device)
        if self._world.sample_part and not self.is_whole:
            loads = random_states.host_of_seed(random_states.mixed("epoch", host, self._world.sample_part))
            random_states.put({**own, **loads}, self._world.device)
        elif skip:  # ranks with the samples of rank 0 continue with its random states
            random_states.put(own, self._world.device)
        number = 0
        while batch is not None:
            indices = list(batch)
            self.checksum = agreement.digest(indices, self.checksum)
            if number >= skip:
                yield number, indices
            with stream.active():
                batch = next(iterator, None)
            number += 1

    def stream(self) -> random_states.State:
        """Return the random states that a sampler on the CPU can draw from."""
        import torch

        return {"cpu": torch.get_rng_state(), **random_states.of_host()}

    def drawn(self) -> Drawn:
        """Return the current states of torch's CPU generator and of the sampler's own generator (or None)."""
        import torch

        return torch.get_rng_state(), None if self.generator is None else self.generator.get_state()

    def resume(self, skip: int, begun: Drawn | None) -> None:
        """Make the next epoch the rest of an epoch that was already used in part.

        Args:
            skip: The number of batches of that epoch that were already used; 0 for a whole epoch.
            begun: The random states before that epoch.
        """
        self.skip, self.begun_again = skip, begun

    def set_generator(self, state: Any) -> None:
        """Set the state of the sampler's own generator, if the sampler has one and `state` is not None."""
        if self.generator is not None and state is not None:
            self.generator.set_state(state)

    def _draw_from(self, drawn: Drawn) -> None:
        import torch

        torch.set_rng_state(drawn[0])
        self.set_generator(drawn[1])

    def of_rank_0(self, own: Any) -> Any:
        """Return the value that rank 0 passes; a collective."""
        import torch

        found = [own if self._world.rank == 0 else None]
        torch.distributed.broadcast_object_list(found, 0)
        return found[0]


class RankBatchSampler:
    """A batch sampler that yields one rank's part of each batch."""

    why: str | None = None  # why this sampler cannot resume in the middle of an epoch; None if it can

    def __init__(self, order: Order, world: World, micro_batches: int) -> None:
        self._order = order
        self._world = world
        self._micro_batches = micro_batches
        self.last_indices: list[int] = []  # of the batch that was drawn last

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[list[int]]:
        for _, batch in self._order:
            self.last_indices = self._part_of(batch, self._world.sample_part)
            yield self.last_indices

    def _part_of(self, batch: list[int], part: int) -> list[int]:
        return part_of_indices(batch, part, self._world.layout.samples, self._micro_batches)


def part_of_indices(batch: list[int], part: int, parts: int, micro_batches: int) -> list[int]:
    """Return the sample indices of one rank's part of a batch: an equal share of each micro-batch.

    All ranks together then compute the same micro-batches as one process, so layers that see a whole micro-batch, such
    as BatchNorm, give the same result.

    Args:
        batch: The sample indices of the batch.
        part: The index of the part, from 0.
        parts: The number of parts.
        micro_batches: The number of micro-batches of each rank.

    Raises:
        UsageError: The batch cannot be split into equal parts.
    """
    if len(batch) % parts:
        raise UsageError(
            f"a batch of {len(batch)} samples cannot be split into {parts} equal parts for the ranks; let the sampler "
            f"return batches of a multiple of {parts} samples"
        )
    pieces = micro_batches if len(batch) % (parts * micro_batches) == 0 else 1
    size = len(batch) // (parts * pieces)
    begins = range(part * size, len(batch), parts * size)
    return [number for begin in begins for number in batch[begin : begin + size]]


class WholeBatchSampler(RankBatchSampler):
    """A batch sampler that yields whole batches. After a batch was read, the rank selects its samples."""

    def __init__(self, order: Order, world: World, micro_batches: int) -> None:
        super().__init__(order, world, micro_batches)
        order.is_whole = True
        self._sizes: deque[int] = deque()  # of the batches that were drawn in the last loop, but not selected from

    def __iter__(self) -> Iterator[list[int]]:
        sizes = self._sizes = deque()
        for _, batch in self._order:
            sizes.append(len(batch))
            yield batch

    def select_parts(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield this rank's samples of each whole batch of a loop that has just begun.

        Raises:
            UsageError: The samples of a batch cannot be selected.
        """
        sizes: deque[int] | None = None
        for batch in batches:
            sizes = self._sizes if sizes is None else sizes
            size = sizes.popleft()
            yield select_rows(batch, size, self._part_of(list(range(size)), self._world.sample_part))

    @contextmanager
    def same_draws(self) -> Iterator[None]:
        """Draw the random numbers of rank 0 inside, also from NumPy and Python; a collective.

        Ranks with other samples than rank 0 have their own random states again afterwards.
        """
        own = self._order.stream()
        random_states.put(self._order.of_rank_0(own))
        yield
        if self._world.sample_part:
            random_states.put(own)


class Dealt(RankBatchSampler):
    """A batch sampler for `[asynchronous]`: each part of a batch goes to the first rank that requests it.

    All ranks together see each part once. A slow rank takes fewer parts.
    """

    why = "with [asynchronous], each rank takes the next part when it is ready; save after an epoch"
    _made = count()  # numbers the loaders, which all ranks create in the same order

    def __init__(self, order: Order, world: World, micro_batches: int) -> None:
        super().__init__(order, world, micro_batches)
        self._name = f"paceline/dealt/{next(Dealt._made)}"
        self._epochs = count()

    def __iter__(self) -> Iterator[list[int]]:
        name = f"{self._name}/{next(self._epochs)}"
        mine, parts = self._world.claim(name), self._world.layout.samples
        for number, batch in self._order:
            while mine // parts == number:
                yield self._part_of(batch, mine % parts)
                mine = self._world.claim(name)


@dataclass(frozen=True)
class BatchReading:
    """How the batches of a loader are read."""

    before_epoch: Callable[[], None] = lambda: None
    of_start: Callable[[], AbstractContextManager[None]] = nullcontext  # the context in which an epoch begins
    of_batch: Callable[[], AbstractContextManager[None]] = nullcontext  # the context in which a batch is read
    select_parts: Callable[[Iterator[Any]], Iterator[Any]] = iter  # of the batches that were read


class ResumableLoader:
    """A `DataLoader` that can resume at its position, counted in global batches."""

    def __init__(  # noqa: PLR0913
        self,
        loader: Any,
        order: Order,
        why: str | None,
        world: World,
        *,
        compared: bool,
        reading: BatchReading,
        options: Any,
    ) -> None:
        """Wrap a `DataLoader`.

        Args:
            loader: A `DataLoader` that follows `order`.
            order: The order of its batches.
            why: Why the loader cannot resume in the middle of an epoch; None if it can.
            world: The ranks.
            compared: Whether ranks compare their sample indices. A sampler of the program can draw from any generator,
                so every batch is compared; of torch's samplers, the first batches, then every 64th, and the last.
            reading: The contexts in which an epoch begins and a batch is read.
            options: The settings of the program's loader that were used.
        """
        self.options = options
        self.position = BatchPosition(len(loader.dataset), None, why, order.generator)
        self._why = why
        self._reading = reading
        self._world = world
        self._compared = compared and world.mesh is not None
        self._loader = loader
        self._order = order
        self._loops = 0
        self._has_started_workers = False  # whether the program had started them when a loaded checkpoint was saved

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        import torch

        self._loops += 1
        self._reading.before_epoch()
        skip, loop, own = self._order.skip, self._loops, torch.get_rng_state()
        self.position.begin(skip)
        self.position.batches = self._order.length()
        if self._has_started_workers:  # then the epoch would not draw their seed
            self._order.resume(skip, self._order.begun_again or self._order.drawn())
        self._has_started_workers, self.position.keeps_workers = False, self._loader.persistent_workers
        with self._world.drawing("loading"), self._reading.of_start():
            iterator = self._reading.select_parts(iter(self._loader))
        if skip:  # creating an iterator draws a number, and the resumed epoch has drawn it before
            torch.set_rng_state(own)
        number = 0
        while True:
            with self._world.drawing("loading"), self._reading.of_batch():
                batch = next(iterator, self)
            number += 1
            if self._compared and (self._why or batch is self or agreement.is_due(number)):
                self._check_indices()
            if batch is self:
                break
            if loop != self._loops:
                self.position.why = SEVERAL_LOOPS
            self.position.taken += 1
            self.position.begun = self._order.begun
            try:
                yield batch
            except GeneratorExit:
                self.position.was_left = loop == self._loops
                raise
        self.position.taken = 0

    def _check_indices(self) -> None:
        """Raise a UsageError if the ranks drew different batches."""
        if agreement.is_same(self._order.checksum, self._world.everyone):
            return
        name, values = type(self._order.sampler).__name__, " and ".join(self._order.differing_names())
        if values:
            raise UsageError(
                f"ranks got different batches: the {values} of {name} differ between ranks. If the program computes "
                "them from the samples of a batch, exchange the values between ranks before the epoch "
                "(torch.distributed.all_gather), so that all ranks have the values of one process"
            )
        raise UsageError(
            f"ranks got different batches: {name} has its own random generator with a different state on each rank, "
            "or depends on something else that differs between ranks; use the same seed on all ranks, and exchange "
            "values that the program computes from the samples of a batch"
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at the position of a loader of the same data set.

        Args:
            state: As `BatchPosition.state` returned it.

        Raises:
            UsageError: The position is in the middle of an epoch, and the batches differ or the sampler cannot
                resume there.
        """
        self.position.load_habits(state)
        taken, generator = state["taken"], self.position.generator
        has_state = generator is not None and state["generator"] is not None
        if has_state and (taken or state.get("seed") in (None, generator.initial_seed())):  # not a seed of each epoch
            generator.set_state(state_of(state["generator"]))
            if not taken and not self.position.is_renewed:
                self.position.assumed = "a generator of the same seed"
        self._order.resume(0, None)
        if not taken:
            self._has_started_workers = state.get("keeps_workers", False) and self._loops == 0
            if self._has_started_workers:
                self.position.assumed = "persistent workers"
            return
        why = state["why"] or self.position.why
        if why:
            raise UsageError(f"the checkpoint was saved after {taken} batches of an epoch, and {why}")
        own = {"samples": self.position.samples, "batches": len(self._order)}
        if any(state[name] != value for name, value in own.items()):
            raise UsageError(
                f"the checkpoint was saved within an epoch of {state['batches']} batches and "
                f"{state['samples']} samples, but this loader has {own['batches']} batches and {own['samples']} "
                f"samples; use the same data "
                "set and batch_size"
            )
        begun = [state_of(text) for text in state["begun"]]
        self._order.resume(taken, (begun[0], begun[1]))
        self.position.taken, self.position.begun = taken, (begun[0], begun[1])
        if state.get("was_left") and self._world.rank == 0:
            sys.stderr.write(
                f"paceline: the checkpoint was saved when the program had left a loop over a loader after {taken} of "
                f"{state['batches']} batches; the next loop reads the rest of this epoch\n"
            )


def why_not(loader: Any) -> str | None:
    """Return why a `DataLoader` cannot resume in the middle of an epoch; None if it can."""
    from torch.utils import data

    known = (data.SequentialSampler, data.RandomSampler, data.SubsetRandomSampler, data.WeightedRandomSampler)
    sampler = loader.sampler if type(loader.batch_sampler) is data.BatchSampler else loader.batch_sampler
    if type(sampler) in known:
        return None
    return (
        f"{type(sampler).__name__} cannot save its position: save after an epoch, or use one of "
        f"{', '.join(one.__name__ for one in known)}, or paceline.data.Loader"
    )
