"""Choice between threads and worker processes for a user's own dataset, and batches from worker processes.

Threads are unsuitable if making samples holds the GIL, or draws from the global random generators, which the training
uses too. Both are measured by making a few samples. In a worker process, the generators are seeded for each sample by
seed, epoch and sample number, so the random numbers do not depend on the worker or the time.
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
from paceline.data.batches.faults import Bad, Faults, Skipped, as_runtime_error, batch_name, collated, why
from paceline.data.batches.file_batches import FileSamples
from paceline.data.batches.own_generators import own_generators
from paceline.data.batches.replacements import nothing_good, substitutes
from paceline.data.batches.sample_seeding import at_once, batch_getter, same, seed_generators, states, transformed
from paceline.data.reading.stages import Lap, Spent, StageClock

Numbers = NDArray[np.int64]
_LONG_S = 0.05  # the time for which samples are made for the measurement
_LIMIT_S = 30.0  # the time limit of the measurement
_LOOK_S, _LEAST_LOOKS = 0.15, 8  # duration and fewest probes of whether the GIL is held
_SLEEP_S = (0.0005, 0.0025)  # the range of random sleeps between probes
_WAITED_S = 2e-4  # a longer wait is not the delay of a timer
_HELD, _FEWEST_TOLD = 0.4, 4  # share of probes with a wait that means "held", and fewest probes


@dataclass(frozen=True)
class Manner:
    """Whether making samples of a dataset draws random numbers or holds the GIL, as measured."""

    draws: bool  # whether samples draw from the global random generators
    holds: bool  # whether making samples holds the GIL most of the time

    @property
    def suits_threads(self) -> bool:
        """Whether threads can make the samples."""
        return not self.draws and not self.holds


def manner_of(make: Callable[[int], Any], ids: Numbers) -> Manner:
    """Make samples in a forked process, to measure whether this draws random numbers or holds the GIL.

    The fork leaves generators and open files of this process unchanged. If the measurement takes too long or fails, the
    result is that threads are unsuitable.

    Args:
        make: Makes a sample from its number.
        ids: The numbers of the samples to make.
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
        with suppress(Exception):  # bad samples are reported when they are used
            make(number)

    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)  # OpenMP's threads do not exist after a fork; torch would wait for them
    before = states()
    some = _enough(tried, ids)
    draws = not same(before, states())
    there.send(Manner(draws=draws, holds=_holds(tried, some)))


def _holds(make: Callable[[int], Any], some: list[int]) -> bool:
    """Return whether a thread that makes samples holds the GIL most of the time.

    This thread wakes at random times and measures whether it waits for the GIL. The other thread gives up the GIL only
    when it blocks, as the switch interval is long. Time without a CPU core is subtracted, because other processes can
    be busy, and probes in which the other thread had no core are ignored.
    """
    over, usual_s = Event(), sys.getswitchinterval()

    def work() -> None:
        begun = time.perf_counter()
        for number in cycle(some):
            make(number)
            if time.perf_counter() - begun > usual_s:
                time.sleep(0)  # releases the GIL, as the switch interval would
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
    """Return this thread's wait for the GIL after each sleep in which the worker ran or slept, in seconds.

    If the worker sleeps, it does not hold the GIL, and the wait counts as 0.
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
    raise AssertionError  # unreachable: `count` is endless


def _cpu_of(thread: Thread) -> Callable[[], float]:
    """Return a function that returns a thread's CPU time in seconds; wall time if the system does not tell it."""
    if not hasattr(time, "pthread_getcpuclockid") or thread.ident is None:
        return time.perf_counter
    return partial(time.clock_gettime, time.pthread_getcpuclockid(thread.ident))


@dataclass(frozen=True, kw_only=True)
class Rest:
    """How worker processes collate samples into a batch."""

    seeds: tuple[int, int]  # the seed and the epoch
    skip: bool  # whether bad samples are skipped
    collate: Callable[[list[Any]], Any] | None
    change: Callable[[Any, Any], Any] | None  # the user's batch transform
    samples: int | Numbers  # the number of samples, or the numbers of allowed replacements

    def put_together(self, own: Samples) -> tuple[Any, list[Bad], dict[str, Spent]]:
        """Return a batch (None if all samples are bad), its bad samples, and the time of its stages."""
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
            batch = None  # the parent process raises the error
        except StopIteration as error:
            raise as_runtime_error(batch_name(own.first), error) from error
        return batch, bad, own.spent | lap.spent


def made_by_processes(
    dataset: Any, steps: Iterable[tuple[int, Numbers]], processes: int, rest: Rest, clock: StageClock, faults: Faults
) -> Iterator[tuple[int, list[Any]]]:
    """Yield the number of samples consumed after each step, and a list that contains the batch of the step.

    Args:
        dataset: A map-style dataset.
        steps: For each step the samples consumed after it, and the numbers of its samples.
        processes: The number of worker processes.
        rest: How samples are collated.
        clock: Sums the times of stages.
        faults: Counts bad samples.

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
        generator=torch.Generator(),  # leaves the training's generator alone
    )
    batches, number = iter(made), 0
    while (found := next(batches, None)) is not None:  # `enumerate` would keep a reference to the batch
        batch, bad, spent = found
        for one in bad:
            faults.met(one.name, ValueError(one.why))
        for stage, taken in spent.items():
            clock.add(stage, taken)
        if batch is None:
            raise nothing_good()
        box = [batch]
        del batch, found  # only the caller has a reference
        yield consumed[number], box
        number += 1


@dataclass(frozen=True)
class Samples:
    """The samples of one batch, made by a worker process."""

    made: list[Any]
    first: int  # the number of the first sample
    spent: dict[str, Spent]
    size: int  # of the batch; `made` is longer if all its samples were bad


class Seeded:
    """A dataset that seeds the random generators for each sample, so that all workers make the same samples."""

    def __init__(self, dataset: Any, seeds: tuple[int, int], skip: bool, samples: int | Numbers) -> None:
        self._dataset = dataset
        self._samples = samples
        self._seeds = seeds
        self._skip = skip
        self._generators: list[Any] | None = None  # searched in the worker process

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitems__(self, numbers: list[int]) -> Samples:
        """Return the samples of a batch; torch's fetcher calls this method with all numbers of a batch."""
        lap = Lap()
        made = self._at_once(numbers) or [self._made(number) for number in numbers]
        if made and all(isinstance(one, Bad) for one in made):
            made += self._others(numbers)
        lap.mark("transform", len(numbers))
        return Samples(made, numbers[0] if numbers else 0, lap.spent, len(numbers))

    def _others(self, numbers: list[int]) -> list[Any]:
        """Return good samples to replace a batch without a good sample; empty if none is found."""
        for others in substitutes(np.array(numbers), self._samples):
            good = [one for one in map(self._made, others.tolist()) if not isinstance(one, Bad)]
            if good:
                return good
        return []

    def _at_once(self, numbers: list[int]) -> list[Any] | None:
        """Return the samples of a batch from one call of the dataset, seeded by the first number, or None."""
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
        try:
            return self._dataset[number]
        except Exception as error:
            if not self._skip:
                raise as_runtime_error(f"sample {number}", error)  # noqa: B904 - the same, or chained
            named = (
                self._dataset.name(number)
                if isinstance(self._dataset, ShardedSamples | FileSamples)
                else f"sample {number}"
            )
            return Bad(named, why(named, error))


def _enough(make: Callable[[int], Any], ids: Numbers) -> list[int]:
    """Make samples for `_LONG_S` seconds, and return their numbers."""
    some: list[int] = []
    make(int(ids[0]))  # the first sample may open files and import modules
    begun = time.perf_counter()
    while time.perf_counter() - begun < _LONG_S and len(some) < 10_000:
        number = int(ids[len(some) % len(ids)])
        make(number)
        some.append(number)
    return some


def _sleeps(thread: Thread) -> bool:
    """Return whether a thread neither runs nor waits for a core; False if the kernel does not tell."""
    try:
        with open(f"/proc/self/task/{thread.native_id}/stat", encoding="ascii", errors="replace") as file:
            return not file.read().rpartition(") ")[2].startswith("R")
    except OSError:
        return False


def _delayed_s(thread: Thread | None = None) -> float:
    """Return the seconds in which a thread (default: this one) was ready but had no core; 0 if unknown.

    The kernel adds the time of a wait when the wait ends.
    """
    whose = f"self/task/{thread.native_id}" if thread else "thread-self"
    try:
        with open(f"/proc/{whose}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
