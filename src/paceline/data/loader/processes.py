"""Makes batches of a user's own data set: in threads where they suit it, else in torch's worker processes.

Threads cannot where samples hold the interpreter, or draw from the generators of the whole process, which the training
draws from too. Both are found out by making a few samples. In a worker process each sample draws from generators that
are seeded by seed, epoch and its number: what it draws does not depend on who makes it, or when.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count, cycle
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Event, Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data.batches.batches import ShardedSamples
from paceline.data.batches.faults import Bad, Faults, Skipped, collated, why
from paceline.data.batches.file_batches import FileSamples
from paceline.data.batches.own_generators import own_generators
from paceline.data.batches.replacements import nothing_good, substitutes
from paceline.data.batches.sample_seeding import at_once, batch_getter, same, seed_generators, states, transformed
from paceline.data.reading.stages import Lap, Spent, StageClock

Numbers = NDArray[np.int64]
_LONG_S = 0.05  # of the samples by which it is found out
_LIMIT_S = 30.0
_LOOK_S, _LEAST_LOOKS = 0.15, 8  # at whether the interpreter is held
_SLEEP_S = (0.0005, 0.0025)
_WAITED_S = 2e-4  # longer than a timer is late
_HELD, _FEWEST_TOLD = 0.4, 4  # of all looks


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
    """Have a process of its own make a few samples, and watch it.

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
    def tried(number: int) -> None:
        with suppress(Exception):  # bad samples are told where they are used
            make(number)

    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)  # the threads of OpenMP are not there after a fork, and would be waited for
    before = states()
    some = _enough(tried, ids)
    draws = not same(before, states())
    there.send(Manner(draws=draws, holds=_holds(tried, some)))


def _holds(make: Callable[[int], Any], some: list[int]) -> bool:
    """Say whether the interpreter is held most of the time, while a thread makes samples.

    This thread wakes at moments that have nothing to do with them, and sees whether it has to wait for the
    interpreter, which here nobody gives up without need. Others may be busy: time without a core is none of it, and a
    look while the other thread had none tells nothing.
    """
    over, usual_s = Event(), sys.getswitchinterval()

    def work() -> None:
        begun = time.perf_counter()
        for number in cycle(some):
            make(number)
            if time.perf_counter() - begun > usual_s:
                time.sleep(0)  # lets go of the interpreter, as threads do in turns
                begun = time.perf_counter()
            if over.is_set():
                return

    sys.setswitchinterval(_LIMIT_S)
    worker = Thread(target=work, daemon=True)
    worker.start()
    waits_s = _waits(worker)
    over.set()
    worker.join()
    sys.setswitchinterval(usual_s)
    return sum(wait_s > _WAITED_S for wait_s in waits_s) > _HELD * max(len(waits_s), _FEWEST_TOLD)


def _waits(worker: Thread) -> list[float]:
    """Return how long this thread waits for the interpreter after sleeps in which the other thread worked, or slept.

    One that sleeps holds nothing, whatever made this thread late then.
    """
    cpu_s = _cpu_of(worker)
    chance, found = random.Random(0), list[float]()
    end = time.perf_counter() + _LOOK_S
    for look in count():
        if look >= _LEAST_LOOKS and time.perf_counter() > end:
            return found
        sleep_s, before_s, worked_s = chance.uniform(*_SLEEP_S), _delayed_s(), cpu_s()
        starved_s = _delayed_s(worker)
        begun = time.perf_counter()
        time.sleep(sleep_s)
        late_s = time.perf_counter() - begun - sleep_s
        if cpu_s() - worked_s > sleep_s / 2:
            found.append(late_s - (_delayed_s() - before_s))
        elif _sleeps(worker) and cpu_s() - worked_s + _delayed_s(worker) - starved_s < sleep_s / 2:
            found.append(0.0)
    raise AssertionError  # a count has no end


def _cpu_of(thread: Thread) -> Callable[[], float]:
    """Return what tells the CPU time of a thread; where the system does not say, it worked all the time."""
    if not hasattr(time, "pthread_getcpuclockid") or thread.ident is None:
        return time.perf_counter
    return partial(time.clock_gettime, time.pthread_getcpuclockid(thread.ident))


@dataclass(frozen=True, kw_only=True)
class Rest:
    """What becomes of samples, here and in worker processes."""

    seeds: tuple[int, int]  # seed and epoch
    skip: bool  # bad samples
    collate: Callable[[list[Any]], Any] | None
    change: Callable[[Any, Any], Any] | None  # of a batch
    samples: int | Numbers  # how many there are, or the numbers of those that may be taken in place of bad ones

    def put_together(self, own: Samples) -> tuple[Any, list[Bad], dict[str, Spent]]:
        """Return a batch, what was bad in it, and what it took."""
        good = [sample for sample in own.made if not isinstance(sample, Bad)]
        bad = [sample for sample in own.made if isinstance(sample, Bad)]
        lap = Lap()
        try:
            batch = collated(good, own.size, self.collate)
            lap.mark("collate", own.size)
            if self.change is not None:
                batch = transformed(batch, self.change, self.seeds, own.first)
                lap.mark("batch transform", own.size)
        except Skipped:
            batch = None  # the parent raises an error
        return batch, bad, own.spent | lap.spent


def made_by_processes(
    dataset: Any, steps: Iterable[tuple[int, Numbers]], processes: int, rest: Rest, clock: StageClock, faults: Faults
) -> Iterator[tuple[int, list[Any]]]:
    """Yield the position in the data after each step, together with a list that holds the batch of the step.

    Args:
        dataset: A map-style data set.
        steps: What is consumed after each, and its samples.
        processes: How many.
        rest: What becomes of samples.
        clock: Adds up what they take.
        faults: Counts bad ones.

    Raises:
        DamagedData: No good sample was found for a batch.
    """
    import torch
    from torch.utils.data import DataLoader

    consumed: list[int] = []

    def asked() -> Iterator[list[int]]:
        for after, ids in steps:
            consumed.append(after)
            yield ids.tolist()

    made = DataLoader(
        Seeded(dataset, rest.seeds, rest.skip, rest.samples),
        batch_sampler=asked(),
        num_workers=processes,
        collate_fn=rest.put_together,
        generator=torch.Generator(),  # its own: the training's is left alone
    )
    batches, number = iter(made), 0
    while (found := next(batches, None)) is not None:  # enumerate would keep a batch until the next one
        batch, bad, spent = found
        for one in bad:
            faults.met(one.name, ValueError(one.why))
        for stage, taken in spent.items():
            clock.add(stage, taken)
        if batch is None:
            raise nothing_good()
        box = [batch]
        del batch, found  # its taker's alone
        yield consumed[number], box
        number += 1


@dataclass(frozen=True)
class Samples:
    """Samples of one batch, as a worker process has made them."""

    made: list[Any]
    first: int  # number of the first of them
    spent: dict[str, Spent]
    size: int  # of the batch; more were made if all of it were bad


class Seeded:
    """A data set whose samples draw the same numbers wherever they are made."""

    def __init__(self, dataset: Any, seeds: tuple[int, int], skip: bool, samples: int | Numbers) -> None:
        self._dataset = dataset
        self._samples = samples
        self._seeds = seeds
        self._skip = skip
        self._generators: list[Any] | None = None  # looked for in the worker process

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitems__(self, numbers: list[int]) -> Samples:
        """Return the samples of a batch; torch asks in this way for all of them at once."""
        lap = Lap()
        made = self._at_once(numbers) or [self._made(number) for number in numbers]
        if made and all(isinstance(one, Bad) for one in made):
            made += self._others(numbers)
        lap.mark("transform", len(numbers))
        return Samples(made, numbers[0] if numbers else 0, lap.spent, len(numbers))

    def _others(self, numbers: list[int]) -> list[Any]:
        """Make good samples in place of those of a batch that has none."""
        for others in substitutes(np.array(numbers), self._samples):
            good = [one for one in map(self._made, others.tolist()) if not isinstance(one, Bad)]
            if good:
                return good
        return []

    def _at_once(self, numbers: list[int]) -> list[Any] | None:
        """Return samples that the data set makes in one call, seeded by the first of them."""
        getter = batch_getter(self._dataset)
        if getter is None or not numbers:
            return None
        self._seed(numbers[0])
        return at_once(getter, numbers, skip=self._skip)

    def _seed(self, number: int) -> None:
        if self._generators is None:
            self._generators = own_generators(self._dataset)
        seed_generators(self._seeds, number, self._generators)

    def _made(self, number: int) -> Any:
        self._seed(number)
        if not self._skip:
            return self._dataset[number]
        try:
            return self._dataset[number]
        except Exception as error:
            named = (
                self._dataset.name(number)
                if isinstance(self._dataset, ShardedSamples | FileSamples)
                else f"sample {number}"
            )
            return Bad(named, why(named, error))


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


def _sleeps(thread: Thread) -> bool:
    """Say whether a thread neither runs nor waits for a core; not where the kernel does not tell."""
    try:
        with open(f"/proc/self/task/{thread.native_id}/stat", encoding="ascii", errors="replace") as file:
            return not file.read().rpartition(") ")[2].startswith("R")
    except OSError:
        return False


def _delayed_s(thread: Thread | None = None) -> float:
    """Return the seconds in which a thread, or this one, could run and had no core; 0 where the kernel does not tell.

    Those of a wait are told when it is over.
    """
    whose = f"self/task/{thread.native_id}" if thread else "thread-self"
    try:
        with open(f"/proc/{whose}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
