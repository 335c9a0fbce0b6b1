"""How long does making a batch take, where samples are made? Meters on torch's dataset fetchers.

The same meter runs in a loader worker and, with no workers, in the training process. It counts; it does
not change what is fetched.
"""

from __future__ import annotations

import functools
from time import perf_counter_ns, thread_time_ns
from typing import Any

from paceline.observe.probe import guard
from paceline.observe.probe.gate import gate
from paceline.observe.probe.randomness import holds_generator, states
from paceline.observe.probe.stand_in import step_out
from paceline.record.layout import BATCH_BOUNDS_S

_BOUNDS_NS = tuple(int(bound * 1e9) for bound in BATCH_BOUNDS_S)

_CPU_FIRST, _CPU_EVERY = 16, 8  # that clock costs half a microsecond
_DRAWS_FIRST = 3  # batches around which the random generators are compared


class Meter:
    """Cumulative counters of one maker of batches; times in ns."""

    __slots__ = (
        "batches",
        "collate_ns",
        "cpu_ns",
        "cpu_of_ns",
        "draws",
        "histogram",
        "max_ns",
        "produce_ns",
        "samples",
    )

    def __init__(self) -> None:
        self.batches = 0
        self.samples = 0
        self.produce_ns = 0
        self.cpu_ns = 0  # CPU time of the batches that had it taken
        self.cpu_of_ns = 0  # wall time of the same batches
        self.collate_ns = 0
        self.max_ns = 0
        self.draws: bool | None = None  # whether making samples drew random numbers; None: not seen yet
        self.histogram = [0] * (len(_BOUNDS_NS) + 1)

    def wants_cpu(self) -> bool:
        """Say whether the next batch shall have its CPU time taken: the first ones, then one in so many."""
        return self.batches < _CPU_FIRST or self.batches % _CPU_EVERY == 0

    def count(self, wall_ns: int, cpu_ns: int | None, samples: int) -> None:
        """Add one batch; its CPU time may not have been taken."""
        if cpu_ns is not None:
            self.cpu_ns += cpu_ns
            self.cpu_of_ns += wall_ns
        self.batches += 1
        self.samples += samples
        self.produce_ns += wall_ns
        self.max_ns = max(self.max_ns, wall_ns)
        # The bounds double: the bucket is the bit length of the ratio to the first.
        self.histogram[min((wall_ns // _BOUNDS_NS[0]).bit_length(), len(_BOUNDS_NS))] += 1

    def compare(self, before: Any, dataset: Any) -> None:
        """Note whether a batch drew random numbers, given the generators' states before it (None: not this one)."""
        if before is not None:
            self.draws = bool(self.draws) or before != states() or holds_generator(dataset)

    def as_json(self) -> dict[str, Any]:
        """Return the counters with units in their names."""
        return {
            "batches": self.batches,
            "samples": self.samples,
            "produce_s": self.produce_ns / 1e9,
            "cpu_s": self.produce_ns * (self.cpu_ns / self.cpu_of_ns if self.cpu_of_ns else 0.0) / 1e9,
            "collate_s": self.collate_ns / 1e9,
            "draws_random": self.draws,
            "max_batch_s": self.max_ns / 1e9,
            "histogram": list(self.histogram),
        }


meters: dict[int, Meter] = {}  # by number of the loader; in a worker there is one, under -1


def patch(torch: Any, in_worker: Any) -> None:
    """Meter both kinds of fetcher. `in_worker` is called once in each worker process, with its WorkerInfo."""
    from torch.utils.data import get_worker_info
    from torch.utils.data._utils import fetch

    for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        _patch_fetch(fetcher, get_worker_info, in_worker)


def _patch_fetch(fetcher: Any, get_worker_info: Any, in_worker: Any) -> None:
    original = fetcher.fetch

    def meter_of(self: Any) -> Meter:
        info = get_worker_info()
        number = gate.loader if info is None else -1
        meter = meters.get(number)
        if meter is None:
            meter = meters[number] = Meter()
            if info is not None:
                in_worker(info, meter)
        return meter

    def prepare(self: Any) -> Meter:
        timed = self.collate_fn
        if type(timed) is not _TimedCollate:
            timed = self.collate_fn = _TimedCollate(timed, meter_of(self))
        return timed.meter

    @functools.wraps(original)
    def metered(self: Any, possibly_batched_index: Any) -> Any:
        meter = None
        try:
            meter = prepare(self)
            before = states() if meter.batches < _DRAWS_FIRST else None
            cpu = thread_time_ns() if meter.wants_cpu() else 0
            begun = perf_counter_ns()
        except Exception as error:
            guard.fault(error, "worker probe")
        try:
            batch = original(self, possibly_batched_index)
        except BaseException as error:
            step_out(error)
            raise
        try:
            if meter is not None:
                wall, spent = perf_counter_ns() - begun, thread_time_ns() - cpu if cpu else None
                meter.count(wall, spent, _how_many(possibly_batched_index))
                meter.compare(before, self.dataset)
        except Exception as error:
            guard.fault(error, "worker probe")
        return batch

    guard.replace(fetcher, "fetch", metered)


def _how_many(index: Any) -> int:
    return len(index) if isinstance(index, (list, tuple)) else 1


class _TimedCollate:
    """The fetcher's own reference to the collate function, timed. User code never sees it."""

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
