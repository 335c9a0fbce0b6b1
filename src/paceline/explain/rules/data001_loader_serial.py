"""DATA001: the training process loads its data itself, and the device waits."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core import units
from paceline.explain import words
from paceline.explain.analysis.breakdown import sample_counts
from paceline.explain.analysis.captures import idle_for_batches
from paceline.explain.analysis.gains import at_most, twice_as_fast
from paceline.explain.analysis.loader import readers
from paceline.explain.analysis.loader_model import WORTH, LoaderModel, waiting_rank
from paceline.explain.analysis.queueing import Queue, QueueSimulation
from paceline.explain.analysis.run_analysis import RankAnalysis, RunAnalysis
from paceline.explain.model import Confidence, Evidence, Finding, Gain, LoaderBreakdown, Remedy, Severity
from paceline.explain.rules import Rule
from paceline.traces.analyze.ranks import Traces

_UNEVEN = 0.4  # share of the loading time in batches that take at least four times the median
_OF_TENSORS = ("TensorDataset",)
_LARGE = 0.2  # share of step time
_MANY, _FEW = 20, 8  # least number of stack samples for high and for medium confidence

PAGE = """
## What it means

The training process reads, decodes and augments the batches itself, without loader workers. While the training process
loads a batch, the model does not train, and a GPU is idle. While the model trains, no batch is loaded.

## How it is detected

Paceline reports `loader-serial` if the training thread waits for data during at least 5% of step time and for at
least 0.2 ms per step, and if no other thread or process loads the data. The training thread loads the data itself if
the training loader has no workers (`num_workers=0`), or if the program has no `DataLoader` and reads data in the
training thread between steps.

Without a `DataLoader`, stack samples show which time is loading of data. The confidence is medium below 20 samples, and
low below 8. The severity is critical if waiting takes at least 20% of step time and a change is sure to gain 5%.

In profiler captures, Paceline reports `loader-serial` if the GPU is idle during at least 5% of the time while a loader
without workers fetches a batch.

## What helps

- `loader.workers`: worker processes load batches while the model computes. Paceline predicts the step time as the
  largest of three times: the compute time, the time to load a batch divided by the number of workers, and the CPU time
  divided by the number of cores. New workers also have to send their batches: 0.5 to 1.7 ms of CPU time per batch, so
  workers do not help much if a batch takes only a few milliseconds. Paceline proposes the smallest number of workers
  whose predicted step time is within 3% of the best. The change is exact (training computes the same numbers) if
  loading a sample draws no random numbers. For an `IterableDataset`, Paceline proposes one worker, which reads the
  samples in the same order as before. With several workers, each worker would read all samples of an
  `IterableDataset`, unless its `__iter__` uses `get_worker_info()`.
- `loader.background`: without a `DataLoader`, load the next batch in a background thread or process.
  A program that makes a loader for each epoch or client starts the workers each time, which Paceline counts.
- `loader.decode`: make the code that loads one sample faster. The expected gain is that of making the function with
  most stack samples twice as fast.
- `loader.whole_batches`: index the tensors of a `TensorDataset` once per batch instead of once per sample.

## When it misleads

If only one reader can read the data (a stream, a database cursor), more than one background thread or worker does not
help. If a dataset keeps its read position between epochs, it starts again from the beginning in each epoch with
workers, because each worker has its own copy of the dataset.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding DATA001, or None if it does not apply."""
    waiting = waiting_rank(analysis)
    if waiting is None:
        return None
    rank, loader_model = waiting
    if loader_model.workers:
        return None
    remedies = _remedies(rank, loader_model)
    return Finding(
        code="DATA001",
        name="loader-serial",
        severity=_severity(loader_model.wait_share, remedies),
        confidence=_confidence(rank),
        time_share=loader_model.wait_share,
        gain=remedies[0].gain,
        ranks=[rank.record.rank],
        evidence=_evidence(rank, loader_model),
        remedies=remedies,
        summary=f"the training process loads its batches itself, without workers, and waits "
        f"{units.percent(loader_model.wait_share)} of its time for data",
    )


def _severity(share: float, remedies: Sequence[Remedy]) -> Severity:
    """Return critical if the wait is large and a change certainly saves a noticeable part of it, otherwise warning."""
    sure = max((one.gain.low for one in remedies if one.gain is not None), default=1.0)
    return "critical" if share >= _LARGE and sure >= 1 + WORTH else "warning"


def _confidence(rank: RankAnalysis) -> Confidence:
    """Return high if a loader measured the wait. Otherwise the confidence depends on the number of stack samples."""
    if rank.loader is not None:
        return "high"
    counts = sample_counts(rank.record, "gap")
    count = sum(n for side, n in counts.items() if side != "unknown")
    return "high" if count >= _MANY else "medium" if count >= _FEW else "low"


def _remedies(rank: RankAnalysis, loader_model: LoaderModel) -> list[Remedy]:
    if rank.loader is None:
        background = Remedy(
            id="loader.background",
            safety="exact",
            change="load the next batch in a background thread or process during the current step",
            gain=loader_model.gain_with(1),
        )
        hot = readers(rank.record)
        cheaper = Remedy(
            id="loader.decode",
            safety="numeric",
            change=f"make {hot[0].function if hot else 'the code that reads the data'} twice as fast",
            gain=twice_as_fast(loader_model.wait_share, hot),
        )
        return [background, cheaper]
    stream = words.is_stream(rank.loader)
    workers = 1 if stream else loader_model.best_workers()
    gain = _gain_of_workers(loader_model, rank.loader, workers)
    if rank.loader.settings.get("dataset") in _OF_TENSORS:
        cheaper = Remedy(
            id="loader.whole_batches",
            safety="exact",
            change=_whole_batches(rank.loader),
            gain=at_most(loader_model.wait_share),
        )
        return [cheaper] if gain.high < 1 + WORTH else [_workers(rank.loader, workers, gain), cheaper]
    cheaper = Remedy(
        id="loader.decode",
        safety="numeric",
        change=f"make {rank.loader.hot[0].function if rank.loader.hot else 'loading a sample'} twice as fast",
        gain=twice_as_fast(loader_model.wait_share, rank.loader.hot),
    )
    return [cheaper] if gain.high < 1 + WORTH else [_workers(rank.loader, workers, gain), cheaper]


def _whole_batches(loader: LoaderBreakdown) -> str:
    """Return the change that makes the loader index tensors once per batch, in the same order as before."""
    told = loader.settings
    batches = f"BatchSampler({told.get('sampler')}(dataset), {told.get('batch_size')}, {bool(told.get('drop_last'))})"
    return f"take whole batches from the tensors: DataLoader(dataset, sampler={batches}, batch_size=None)"


def _gain_of_workers(loader_model: LoaderModel, loader: LoaderBreakdown, workers: int) -> Gain:
    """Return the gain of using workers. If batch times are uneven, a simulation of the queue limits the gain."""
    gain = loader_model.gain_with(workers)
    if not loader.batch_times or loader.slow_share < _UNEVEN:
        return gain
    played = QueueSimulation(loader_model=loader_model, loader=loader).gain(Queue(workers=workers, factor=2))
    return Gain(low=min(gain.low, played.low), high=min(gain.high, played.high))


def _workers(loader: LoaderBreakdown, workers: int, gain: Gain) -> Remedy:
    kept = "" if words.is_stream(loader) else ", persistent_workers=True"
    change = f"DataLoader(num_workers={workers}{kept})"
    return Remedy(id="loader.workers", safety=words.safety_of_workers(loader, workers), change=change, gain=gain)


def _evidence(rank: RankAnalysis, loader_model: LoaderModel) -> list[Evidence]:
    found = [words.share_of_step(loader_model.wait_share, "waiting for data"), words.step_time(rank.breakdown.step_s)]
    if rank.loader is not None:
        return [*found, words.kinds_of_time(rank.loader), *words.collating(rank.loader), *words.hot(rank.loader)]
    return found + [
        Evidence(
            text=f"{f.function} takes {units.percent(f.share)} of the time that the loader needs for batches "
            f"({f.count} "
            f"stack samples)",
            value=f.share,
            unit=words.SHARE_OF_SAMPLES,
        )
        for f in readers(rank.record)[:2]
    ]


def check_traces(traces: Traces) -> Finding | None:
    """Return finding DATA001 for captures: the GPU is idle while the training process loads a batch."""
    return idle_for_batches(traces, serial=True, code="DATA001", name="loader-serial")


RULE = Rule(code="DATA001", name="loader-serial", page=PAGE, check=check, check_traces=check_traces)
