"""The time of the training loader's workers, from their counters, split by kind of time.

Programs without a `DataLoader` make batches in a reader of their own. If most stack samples of input preparation are in
Python's functions that wait for a thread or process, the reader only fetches batches that another thread or process
made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.core.statistics import Interval
from paceline.explain.analysis.breakdown import hot_functions, runnable_ratio
from paceline.explain.model import HotFunction, LoaderBreakdown, WorkerRow
from paceline.record.layout import BATCH_BOUNDS_S
from paceline.record.run import JsonObject, Rank, Run, Worker, column

_START_S = 0.3  # seconds that starting some workers may take
_IDENTITY = ("class", "dataset", "num_workers", "batch_size")
_READER_INPUT = {"gap": ("input",), "other": ("input",)}
_WAITING_FILES = ("threading.py:", "queue.py:", "queues.py:", "connection.py:", "selectors.py:", "synchronize.py:")
_FEW_SAMPLES = 8  # with fewer samples than this, nothing is concluded
_FEWEST_OF_HOT = 4  # with fewer samples than this, no function is named


def training_loaders(rank: Rank) -> list[int]:
    """Return the indices of the loaders on which training waited most. Equal loaders, as built per epoch, count as one.

    Loaders that only evaluation used are left out. If the training thread fetches from no loader but waits for threads
    of the program, the result is the loaders from which these threads fetch.
    """
    loaders = rank.summary.get("loaders", ())
    weight: Counter[tuple[object, ...]] = Counter()
    for loader in loaders:
        weight[_key(loader)] += loader.get("train_wait_s", 0.0) + 1e-9 * loader.get("train_fetches", 0)
    feeds = "train_fetches"
    if not weight or max(weight.values()) <= 0:
        feeds = "thread_fetches"
        if not made_behind(rank):
            return []
        weight = Counter()
        for loader in loaders:
            weight[_key(loader)] += loader.get(feeds, 0)
    chosen = weight.most_common(1)
    return [i for i, loader in enumerate(loaders) if _key(loader) == chosen[0][0] and loader.get(feeds)]


@dataclass(frozen=True, kw_only=True)
class EvaluationLoader:
    """A loader without workers that only evaluation used."""

    dataset: str  # class name of the dataset
    batch_size: int | None
    wait_s: float  # seconds that the program waited for batches of the loader
    blocked: float  # share of the loading time in which the process neither computed nor waited for a core


def evaluation_loaders(rank: Rank) -> list[EvaluationLoader]:
    """Return the evaluation loaders that workers could make faster, the one with the longest wait first.

    These loaders have no workers. Streams are left out, and so are loaders whose samples draw random numbers, because
    workers would draw other numbers. Loaders are also left out if one evaluation waits for less time than starting
    workers may take.
    """
    own = [one for one in rank.summary.get("loaders", ()) if one.get("eval_fetches") and not one.get("train_fetches")]
    plain = [one for one in own if not one.get("num_workers") and not one.get("iterable") and not _draws(one)]
    plain = [one for one in plain if one.get("eval_wait_s", 0.0) >= _START_S * max(1, one.get("epochs") or 1)]
    found = [
        EvaluationLoader(
            dataset=str(one.get("dataset")),
            batch_size=one.get("batch_size"),
            wait_s=float(one.get("eval_wait_s", 0.0)),
            blocked=_blocked(one.get("meter") or {}),
        )
        for one in plain
    ]
    return sorted(found, key=lambda one: -one.wait_s)


def _draws(loader: JsonObject) -> bool:
    meter = loader.get("meter") or {}
    return bool(meter.get("draws_random") or meter.get("own_generator"))


def _blocked(meter: JsonObject) -> float:
    produce = float(meter.get("produce_s", 0.0))
    return max(0.0, 1 - float(meter.get("cpu_s", 0.0)) / produce) if produce > 0 else 0.0


def loaders_made(rank: Rank) -> int:
    """Return how many loaders the program made for training: one per epoch, one per client, or a single loader."""
    loaders = rank.summary.get("loaders", ())
    return sum(int(loaders[number].get("together", 1)) for number in training_loaders(rank))


def _key(loader: JsonObject) -> tuple[object, ...]:
    return tuple(loader.get(name) for name in _IDENTITY)


def steps_of_epoch(rank: Rank) -> int | None:
    """Return the optimizer steps in one epoch of the training loader, or None if no second epoch was seen."""
    numbers = training_loaders(rank)
    begun = sorted(note["time_ns"] for note in rank.noted("epoch") if note["loader"] in numbers)
    first_ns = rank.meta.get("first_ns")
    if len(begun) < 2 or first_ns is None:
        return None
    ends = np.cumsum(column(rank.steps, "wall_s"))
    return max(1, int(np.searchsorted(ends, (begun[1] - first_ns) / 1e9)))


def loader_breakdown(run: Run, rank: Rank) -> LoaderBreakdown | None:
    """Return the breakdown of one rank's training loader, or None if there is no loader or nothing was counted."""
    numbers = training_loaders(rank)
    if not numbers:
        return None
    settings = rank.summary["loaders"][numbers[0]]
    if settings.get("thread_fetches") and not settings.get("num_workers"):
        settings = {**settings, "threads": 1, "in_thread": True}
    if settings.get("num_workers"):
        return _of_workers(run, rank, numbers, settings)
    return _in_process(rank, numbers, settings)


def _workers_of(run: Run, rank: Rank, numbers: Sequence[int]) -> list[Worker]:
    seeds = {note["base_seed"] for note in rank.noted("epoch") if note["loader"] in numbers}
    own = [w for w in run.workers if w.parent_pid == rank.pid and w.host == rank.host and w.ticks]
    return [w for w in own if w.base_seed in seeds] or own


def _of_workers(run: Run, rank: Rank, numbers: Sequence[int], settings: JsonObject) -> LoaderBreakdown | None:
    workers = _workers_of(run, rank, numbers)
    rows = [worker_row(w) for w in workers]
    produce = sum(r.produce_s for r in rows)
    batches = sum(r.batches for r in rows)
    if not batches or produce <= 0:
        return None
    last = [w.last for w in workers]
    life = max(float(t.get("life_s", 0.0)) for t in last)
    reads = [t["read_bytes"] for t in last if t.get("read_bytes") is not None]
    return LoaderBreakdown(
        workers=int(settings["num_workers"]),
        loader=_title(settings),
        batches=batches,
        samples=sum(int(t.get("samples", 0)) for t in last),
        produce_s=produce,
        idle_s=sum(r.idle_s for r in rows),
        on_cpu=sum(r.on_cpu_s for r in rows) / produce,
        blocked=sum(r.blocked_s for r in rows) / produce,
        runnable=sum(r.runnable_s for r in rows) / produce,
        collate=sum(r.collate_s for r in rows) / produce,
        hand_over=sum(r.hand_over_s for r in rows) / produce,
        batch_s=batch_interval([t.get("histogram", []) for t in last], produce / batches),
        cpu_per_batch_s=sum(r.on_cpu_s for r in rows) / batches,
        slow_share=slow_share([t.get("histogram", []) for t in last]),
        batch_times=batch_times([t.get("histogram", []) for t in last], produce),
        draws_random=any(t.get("draws_random") for t in last),
        own_generator=any(t.get("own_generator") for t in last),
        read_bytes_per_s=sum(reads) / life if reads and life > 0 else None,
        hot=_hot([h for t in last for h in t.get("hot", ())]),
        settings=settings,
        per_worker=rows[:64],
    )


def worker_row(worker: Worker) -> WorkerRow:
    """Return one worker's time: making batches (on a CPU, blocked, waiting for a CPU) and waiting for requests."""
    last = worker.last
    produce, on_cpu = float(last.get("produce_s", 0.0)), float(last.get("cpu_s", 0.0))
    off_cpu = max(0.0, produce - on_cpu)
    runnable = min(float(last.get("runnable_s") or 0.0), off_cpu)
    return WorkerRow(
        worker_id=worker.worker_id,
        pid=worker.pid,
        batches=int(last.get("batches", 0)),
        produce_s=produce,
        idle_s=max(0.0, float(last.get("life_s", 0.0)) - produce),
        on_cpu_s=min(on_cpu, produce),
        blocked_s=off_cpu - runnable,
        runnable_s=runnable,
        collate_s=float(last.get("collate_s", 0.0)),
        hand_over_s=float(last.get("hand_over_cpu_s", 0.0)),
    )


def _in_process(rank: Rank, numbers: Sequence[int], settings: JsonObject) -> LoaderBreakdown | None:
    meters = [m for i in numbers if (m := rank.summary["loaders"][i].get("meter"))]
    produce = sum(m["produce_s"] for m in meters)
    batches = sum(m["batches"] for m in meters)
    if not batches or produce <= 0:
        return None
    on_cpu = min(produce, sum(m["cpu_s"] for m in meters))
    runnable = min(produce - on_cpu, _runnable_s(meters, on_cpu * runnable_ratio(rank)))
    # With loader threads, samples of the training thread show where it waits, not the code that makes batches.
    hot = [e for e in rank.summary.get("hot", ()) if e["slot"] == "data_wait" and not _is_waiting(e)]
    return LoaderBreakdown(
        workers=0,
        threads=int(settings.get("threads") or 0),
        loader=_title(settings),
        batches=batches,
        samples=sum(m["samples"] for m in meters),
        produce_s=produce,
        idle_s=0.0,
        on_cpu=on_cpu / produce,
        blocked=(produce - on_cpu - runnable) / produce,
        runnable=runnable / produce,
        collate=sum(m["collate_s"] for m in meters) / produce,
        hand_over=0.0,
        batch_s=batch_interval([m["histogram"] for m in meters], produce / batches),
        cpu_per_batch_s=on_cpu / batches,
        slow_share=slow_share([m["histogram"] for m in meters]),
        batch_times=batch_times([m["histogram"] for m in meters], produce),
        draws_random=any(m.get("draws_random") for m in meters),
        own_generator=any(m.get("own_generator") for m in meters),
        read_bytes_per_s=None,
        hot=_hot(hot) if sum(e["count"] for e in hot) >= _FEWEST_OF_HOT else [],
        settings=settings,
    )


def _runnable_s(meters: Sequence[JsonObject], otherwise: float) -> float:
    """Return the seconds that the training thread waited for a CPU while it made batches.

    Args:
        meters: The meters of the loaders. Records of earlier versions do not contain this time.
        otherwise: The value to return if a meter does not contain this time.
    """
    measured = [float(m["runnable_s"]) for m in meters if m.get("runnable_s") is not None]
    return sum(measured) if len(measured) == len(meters) else otherwise


def _merged(histograms: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of the histograms, and the upper bound of each bucket in seconds."""
    width = max((len(h) for h in histograms), default=0)
    total = np.zeros(width)
    for histogram in histograms:
        total[: len(histogram)] += histogram
    return total, np.append(np.array(BATCH_BOUNDS_S), BATCH_BOUNDS_S[-1] * 2)[:width]


def batch_interval(histograms: Sequence[Sequence[int]], mean_s: float) -> Interval:
    """Return the mean time of a batch with its 5th and 95th percentile, to the histogram's resolution of 2x."""
    total, upper = _merged(histograms)
    count = int(total.sum())
    if not count:
        return Interval(value=mean_s, low=mean_s, high=mean_s, count=0)
    ranks = np.cumsum(total) / count
    low = float(upper[int(np.searchsorted(ranks, 0.05))]) / 2
    high = float(upper[min(len(upper) - 1, int(np.searchsorted(ranks, 0.95)))])
    return Interval(value=mean_s, low=min(low, mean_s), high=max(high, mean_s), count=count)


def slow_share(histograms: Sequence[Sequence[int]]) -> float:
    """Return the share of time in batches of at least four times the median, to the histogram's resolution of 2x."""
    total, upper = _merged(histograms)
    if not total.sum():
        return 0.0
    times = total * upper * 0.75  # the middle of each bucket
    median = int(np.searchsorted(np.cumsum(total) / total.sum(), 0.5))
    return float(times[median + 3 :].sum() / times.sum())


def batch_times(histograms: Sequence[Sequence[int]], all_s: float) -> list[tuple[int, float]]:
    """Return the histogram as (number of batches, seconds per batch), scaled so that the total time is `all_s`."""
    total, upper = _merged(histograms)
    middles = 0.75 * upper
    if not total.sum():
        return []
    scale = all_s / float((total * middles).sum())
    return [(int(count), scale * float(middle)) for count, middle in zip(total, middles, strict=True) if count]


def _hot(entries: Sequence[JsonObject], most: int = 6) -> list[HotFunction]:
    merged: Counter[str] = Counter()
    for entry in entries:
        merged[str(entry["function"])] += int(entry["count"])
    total = sum(merged.values())
    return [HotFunction(function=n, share=c / total, count=c) for n, c in merged.most_common(most)]


def _title(settings: JsonObject) -> str:
    workers = settings.get("num_workers") or 0
    threads = settings.get("threads")
    how = f"{workers} worker{'s' if workers != 1 else ''}" if workers else "no workers"
    how = f"{threads} thread{'s' if threads != 1 else ''}" if threads else how
    return f"{settings.get('class')} over {settings.get('dataset')} (batch_size {settings.get('batch_size')}, {how})"


# ----------------------------------------------------------------------------------------- readers without a DataLoader


def readers(rank: Rank) -> list[HotFunction]:
    """Return the user's functions with most stack samples in input preparation."""
    return hot_functions(rank, _READER_INPUT)


def made_behind(rank: Rank) -> bool:
    """Return whether the training thread waits for another thread or process of the program to prepare the input."""
    entries = [e for e in rank.summary.get("hot", ()) if e["side"] in _READER_INPUT.get(e["slot"], ())]
    waiting: int = sum(e["count"] for e in entries if _is_waiting(e))
    total: int = sum(e["count"] for e in entries)
    return total >= _FEW_SAMPLES and waiting > total / 2


def _is_waiting(entry: JsonObject) -> bool:
    """Return whether the stack samples of an entry were taken in a function that waits for a thread or process."""
    return any(f"({name}" in (entry.get("leaf") or "") for name in _WAITING_FILES)
