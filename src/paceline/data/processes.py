"""Who makes batches of a data set that is the user's own? Threads where they can, else torch's worker processes.

Threads cannot where samples hold the interpreter, or draw from the generators of the whole process, which the training
draws from too. Both are found out by making a few samples. In a worker process each sample draws from generators that
are seeded by seed, epoch and its number: what it draws does not depend on who makes it, or when.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Barrier
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data.chance import key_of
from paceline.data.changed import transformed
from paceline.data.faults import Bad, Faults, Skipped, collated
from paceline.data.stages import Clock, Lap, Spent

Numbers = NDArray[np.int64]
_SAMPLES = 3  # a rank's draws: for what a key is
_LONG_S = 0.05  # of the samples by which it is found out
_LIMIT_S = 30.0
_HELD = 0.5  # of the time of two threads in which they wait for each other


@dataclass(frozen=True)
class Manner:
    """How samples behave."""

    draws: bool  # from generators of the whole process
    holds: bool  # the interpreter, most of the time

    @property
    def suits_threads(self) -> bool:
        """Whether threads can make them."""
        return not self.draws and not self.holds


def manner_of(make: Callable[[int], Any], ids: Numbers) -> Manner:
    """Have a process of its own make a few samples, alone and by two threads at a time.

    Here nothing changes: no generator, and no file that the first sample opens. What cannot be found out in time, or
    ends in an error, is taken to need processes.

    Args:
        make: Makes a sample.
        ids: Numbers of samples to make it with.
    """
    if not len(ids):
        return Manner(draws=False, holds=False)
    context = get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_found_out, args=(there, make, ids), daemon=True)
    process.start()
    there.close()
    try:
        found: Manner = here.recv() if here.poll(_LIMIT_S) else Manner(draws=True, holds=True)
    except EOFError:
        found = Manner(draws=True, holds=True)
    process.kill()
    process.join()
    here.close()
    return found


def _found_out(there: Connection, make: Callable[[int], Any], ids: Numbers) -> None:
    before = _states()
    some = _enough(make, ids)
    draws = not _same(before, _states())
    there.send(Manner(draws=draws, holds=_holds(make, some)))


def _holds(make: Callable[[int], Any], some: list[int]) -> bool:
    """Say whether two threads wait for each other.

    What each sleeps more than one alone does, it waits for the other: time in which it could run and had no core is
    none of it, so a busy machine changes nothing.
    """
    (alone,), together = _times(make, some, 1), _times(make, some, 2)
    slept_s = sum(one.slept_s for one in together) / len(together)
    return slept_s - alone.slept_s > _HELD * (alone.cpu_s + alone.slept_s)


@dataclass(frozen=True, kw_only=True)
class Rest:
    """What becomes of samples, here and in worker processes."""

    seeds: tuple[int, int]  # seed and epoch
    skip: bool  # bad samples
    collate: Callable[[list[Any]], Any] | None
    change: Callable[[Any, Any], Any] | None  # of a batch

    def put_together(self, own: Samples) -> tuple[Any, list[Bad], dict[str, Spent]]:
        """Return a batch, what was bad in it, and what it took."""
        good = [sample for sample in own.made if not isinstance(sample, Bad)]
        bad = [sample for sample in own.made if isinstance(sample, Bad)]
        lap = Lap()
        try:
            batch = collated(good, len(own.made), self.collate)
            lap.mark("collate", len(own.made))
            if self.change is not None:
                batch = transformed(batch, self.change, self.seeds, own.first)
                lap.mark("batch transform", len(own.made))
        except Skipped:
            batch = None
        return batch, bad, own.spent | lap.spent


def made_by_processes(
    dataset: Any, steps: Iterable[tuple[int, Numbers]], processes: int, rest: Rest, clock: Clock, faults: Faults
) -> Iterator[tuple[int, Any]]:
    """Yield what is consumed after each step, and its batch; None where every sample of it is bad.

    Args:
        dataset: A map-style data set.
        steps: What is consumed after each, and its samples.
        processes: How many.
        rest: What becomes of samples.
        clock: Adds up what they take.
        faults: Counts bad ones.
    """
    import torch
    from torch.utils.data import DataLoader

    consumed: list[int] = []

    def asked() -> Iterator[list[int]]:
        for after, ids in steps:
            consumed.append(after)
            yield ids.tolist()

    made = DataLoader(
        Seeded(dataset, rest.seeds, rest.skip),
        batch_sampler=asked(),
        num_workers=processes,
        collate_fn=rest.put_together,
        generator=torch.Generator(),  # its own: the training's is left alone
    )
    for number, (batch, bad, spent) in zip(count(), made):  # noqa: B905 - a count has no end
        for one in bad:
            faults.met(one.name, ValueError(one.why))
        for stage, taken in spent.items():
            clock.add(stage, taken)
        yield consumed[number], batch


@dataclass(frozen=True)
class Samples:
    """Samples of one batch, as a worker process has made them."""

    made: list[Any]
    first: int  # number of the first of them
    spent: dict[str, Spent]


class Seeded:
    """A data set whose samples draw the same numbers wherever they are made."""

    def __init__(self, dataset: Any, seeds: tuple[int, int], skip: bool) -> None:
        self._dataset = dataset
        self._seeds = seeds
        self._skip = skip

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitems__(self, numbers: list[int]) -> Samples:
        """Return the samples of a batch; torch asks in this way for all of them at once."""
        lap = Lap()
        made = [self._made(number) for number in numbers]
        lap.mark("transform", len(numbers))
        return Samples(made, numbers[0] if numbers else 0, lap.spent)

    def _made(self, number: int) -> Any:
        import torch

        key = key_of(*self._seeds, _SAMPLES, number)
        random.seed(key)
        np.random.seed(key & 0xFFFFFFFF)
        torch.manual_seed(key & 0x7FFFFFFFFFFFFFFF)
        if not self._skip:
            return self._dataset[number]
        try:
            return self._dataset[number]
        except Exception as error:
            return Bad(f"sample {number}", str(error))


def _enough(make: Callable[[int], Any], ids: Numbers) -> list[int]:
    """Make samples until they have taken long enough; return their numbers."""
    some: list[int] = []
    make(int(ids[0]))  # what is opened and imported once
    begun = time.perf_counter()
    while time.perf_counter() - begun < _LONG_S and len(some) < 10_000:
        number = int(ids[len(some) % len(ids)])
        make(number)
        some.append(number)
    return some


@dataclass(frozen=True)
class _Times:
    """What a thread did while it made samples."""

    cpu_s: float
    slept_s: float  # waited for something else than a core


def _times(make: Callable[[int], Any], some: list[int], threads: int) -> list[_Times]:
    """Have some threads make samples side by side, each all of them, from one moment on."""
    begun: list[float] = []
    start = Barrier(threads, lambda: begun.append(time.perf_counter()))

    def all_of_them(_: int) -> _Times:
        cpu, delay = time.thread_time(), _delayed_s()
        start.wait()
        for number in some:
            make(number)
        cpu, delay = time.thread_time() - cpu, _delayed_s() - delay
        return _Times(cpu, max(0.0, time.perf_counter() - begun[0] - cpu - delay))

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(all_of_them, range(threads)))


def _delayed_s() -> float:
    """Return the seconds in which this thread could run and had no core; 0 where the kernel does not tell."""
    try:
        with open("/proc/thread-self/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _states() -> list[Any]:
    """Return the states of the generators of the process."""
    torch = sys.modules.get("torch")
    return [random.getstate(), np.random.get_state(), torch.get_rng_state() if torch is not None else None]


def _same(one: list[Any], other: list[Any]) -> bool:
    same_torch = one[2] is None or other[2] is None or bool((one[2] == other[2]).all())
    numpy_one, numpy_other = one[1], other[1]
    same_numpy = bool((numpy_one[1] == numpy_other[1]).all()) and numpy_one[2:] == numpy_other[2:]
    return one[0] == other[0] and same_numpy and same_torch
