"""Time the creation of batches, with meters on torch's dataset fetchers.

The same meter runs in a loader worker and, without workers, in the training process. It only counts and does not change
the batches.
"""

from __future__ import annotations

import functools
from _thread import get_ident, get_native_id
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns, thread_time_ns
from typing import Any

from paceline.inprocess import hooks
from paceline.inprocess.recorder.loaders.iteration import in_threads
from paceline.inprocess.recorder.loaders.randomness import holds_generator, states
from paceline.inprocess.recorder.probe_state import gate
from paceline.inprocess.recorder.process import thread_times_s
from paceline.inprocess.wrappers import step_out
from paceline.record.layout import BATCH_BOUNDS_S

_BOUNDS_NS = tuple(int(bound * 1e9) for bound in BATCH_BOUNDS_S)

_CPU_EVERY = 32  # CPU time is read for the first 32 batches, then for one in 32: it is a system call
_DRAWS_FIRST = 3  # number of first batches for which the random generators are compared


Taken = tuple[int, int | None] | None  # ns on a CPU, ns ready without a CPU (None: unknown)


class _ThreadClock:
    """The CPU time and the waiting time of the calling thread, measured from the creation of this object."""

    __slots__ = ("_cpu", "_runnable")

    def __init__(self) -> None:
        times = thread_times_s(get_native_id())
        self._runnable = None if times is None else times[1]
        self._cpu = thread_time_ns()

    def taken(self) -> tuple[int, int | None]:
        """Return how many ns since creation the thread ran on a CPU, and how many it was ready but waited for a CPU.

        The second number is None if the kernel does not report it.
        """
        cpu = thread_time_ns() - self._cpu
        times = thread_times_s(get_native_id()) if self._runnable is not None else None
        return cpu, None if times is None or self._runnable is None else round((times[1] - self._runnable) * 1e9)


class Meter:
    """Cumulative counters of one batch producer; times are in ns.

    The producer only appends to `noted`. The reader of the counters evaluates these entries in `settle`.
    """

    __slots__ = (
        "begun",
        "batches",
        "collate_ns",
        "cpu_ns",
        "cpu_of_ns",
        "draws",
        "histogram",
        "max_ns",
        "noted",
        "own_generator",
        "produce_ns",
        "runnable_ns",
        "runnable_of_ns",
        "samples",
    )

    def __init__(self) -> None:
        self.begun = 0  # number of started batches
        self.noted: deque[tuple[int, Taken, int]] = deque()  # wall ns, thread times if they were read, samples
        self.batches = 0
        self.samples = 0
        self.produce_ns = 0
        self.cpu_ns = 0  # CPU time of the batches whose CPU time was read
        self.cpu_of_ns = 0  # wall time of the same batches
        self.runnable_ns = 0  # time ready without a CPU, of the batches for which it was read
        self.runnable_of_ns = 0  # wall time of the same batches
        self.collate_ns = 0
        self.max_ns = 0
        self.draws: bool | None = None  # whether loading samples drew random numbers; None: unknown
        self.own_generator: bool | None = None  # whether the dataset has a random generator of its own; None: unknown
        self.histogram = [0] * (len(_BOUNDS_NS) + 1)

    def settle(self) -> None:
        """Update the counters with the batches that were noted since the last call."""
        while self.noted:
            self._count(*self.noted.popleft())

    def _count(self, wall_ns: int, taken: Taken, samples: int) -> None:
        if taken is not None:
            self.cpu_ns += taken[0]
            self.cpu_of_ns += wall_ns
            if taken[1] is not None:
                self.runnable_ns += taken[1]
                self.runnable_of_ns += wall_ns
        self.batches += 1
        self.samples += samples
        self.produce_ns += wall_ns
        self.max_ns = max(self.max_ns, wall_ns)
        # The bounds double, so the bucket is the bit length of the ratio to the first bound.
        self.histogram[min((wall_ns // _BOUNDS_NS[0]).bit_length(), len(_BOUNDS_NS))] += 1

    def compare(self, before: Any, dataset: Any) -> None:
        """Record whether a batch drew random numbers, given the states of the generators before the batch."""
        self.own_generator = bool(self.own_generator) or holds_generator(dataset)
        self.draws = bool(self.draws) or self.own_generator or before != states()

    def as_json(self) -> dict[str, Any]:
        """Return the counters, with units in their names."""
        self.settle()
        return {
            "batches": self.batches,
            "samples": self.samples,
            "produce_s": self.produce_ns / 1e9,
            "cpu_s": self.produce_ns * (self.cpu_ns / self.cpu_of_ns if self.cpu_of_ns else 0.0) / 1e9,
            "runnable_s": self.produce_ns * self.runnable_ns / self.runnable_of_ns / 1e9
            if self.runnable_of_ns
            else None,
            "collate_s": self.collate_ns / 1e9,
            "draws_random": self.draws,
            "own_generator": self.own_generator,
            "max_batch_s": self.max_ns / 1e9,
            "histogram": list(self.histogram),
        }


meters: dict[int, Meter] = {}  # by loader number; a worker has one, under -1


def patch(torch: Any, in_worker: Any) -> None:
    """Meter both kinds of fetcher. `in_worker` is called once in each worker process, with its WorkerInfo and meter."""
    from torch.utils.data import get_worker_info
    from torch.utils.data._utils import fetch

    prepare = _preparing(get_worker_info, in_worker)
    for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        hooks.replace(fetcher, "fetch", _metered(fetcher.fetch, prepare))


def _preparing(get_worker_info: Any, in_worker: Any) -> Callable[[Any], Meter]:
    """Return a function that wraps a fetcher's collate function with a timer, once, and returns the fetcher's meter."""

    def meter_of() -> Meter:
        info = get_worker_info()
        number = _loader_of_this_thread() if info is None else -1
        meter = meters.get(number)
        if meter is None:
            meter = meters[number] = Meter()
            if info is not None:
                in_worker(info, meter)
        return meter

    def prepare(fetcher: Any) -> Meter:
        timed = fetcher.collate_fn
        if type(timed) is not _TimedCollate:
            timed = fetcher.collate_fn = _TimedCollate(timed, meter_of())
        return timed.meter

    return prepare


def _loader_of_this_thread() -> int:
    """Return the number of the loader from which this thread fetches.

    For a thread that does not iterate a loader itself, this is the loader of the training thread.
    """
    return in_threads.get(get_ident(), gate.loader)


def _metered(original: Any, prepare: Callable[[Any], Meter]) -> Any:
    @functools.wraps(original)
    def metered(self: Any, possibly_batched_index: Any) -> Any:
        before = meter = None
        try:
            meter = prepare(self)
            number = meter.begun
            meter.begun = number + 1
            if number < _DRAWS_FIRST:
                before = states()
            clock = None if number % _CPU_EVERY and number > _CPU_EVERY else _ThreadClock()
            begun = perf_counter_ns()
        except Exception as error:
            hooks.fault(error, "worker probe")
        try:
            batch = original(self, possibly_batched_index)
        except BaseException as error:
            step_out(error)
            raise
        try:
            if meter is not None:
                wall, index = perf_counter_ns() - begun, possibly_batched_index
                samples = len(index) if isinstance(index, (list, tuple)) else 1
                meter.noted.append((wall, clock.taken() if clock is not None else None, samples))
                if before is not None:
                    meter.compare(before, self.dataset)
        except Exception as error:
            hooks.fault(error, "worker probe")
        return batch

    return metered


def patch_maker(owner: Any, name: str, told: Callable[[Any, Any], tuple[int, int]]) -> None:
    """Meter a method that produces a batch from its argument, in any thread.

    Args:
        owner: The class.
        name: The name of the method, which takes one argument.
        told: Returns the loader number and the number of requested samples.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def metered(self: Any, asked: Any) -> Any:
        begun, clock = perf_counter_ns(), _ThreadClock()
        batch = original(self, asked)
        try:
            number, samples = told(self, asked)
            meter = meters.setdefault(number, Meter())
            meter.noted.append((perf_counter_ns() - begun, clock.taken(), samples))
        except Exception as error:
            hooks.fault(error, "loader probe")
        return batch

    hooks.replace(owner, name, metered)


class _TimedCollate:
    """Wrapper that times the collate function of a fetcher. User code never sees it."""

    __slots__ = ("_function", "meter")

    def __init__(self, function: Any, meter: Meter) -> None:
        self._function = function
        self.meter = meter

    def __call__(self, data: Any) -> Any:
        begun = perf_counter_ns()
        try:
            return self._function(data)
        except BaseException as error:
            step_out(error)
            raise
        finally:
            self.meter.collate_ns += perf_counter_ns() - begun
