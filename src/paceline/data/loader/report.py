"""The report of a loader: the times of its stages, its bad samples, its cache, and its threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.data.batches.faults import Bad, Faults
from paceline.data.loader.pacer import AutoPacer
from paceline.data.loader.tuning import Change, Pace
from paceline.data.reading.cache_offer import CacheOffer
from paceline.data.reading.decoded_cache import CacheUse, DecodedCache
from paceline.data.reading.stages import StageClock


@dataclass(frozen=True, kw_only=True)
class StageCost:
    """The mean time of one stage for a sample, over the timed batches."""

    name: str
    wall_s: float  # per sample, in the thread that makes the sample
    cpu_s: float  # per sample
    samples: int  # timed


@dataclass(frozen=True, kw_only=True)
class LoaderReport:
    """The state of a loader and its measurements so far."""

    stages: Sequence[StageCost]
    pace: Pace  # the current numbers of threads, readers and ready batches
    most: Pace  # their limits
    processes: int  # worker processes, which replace threads; 0 without
    wait_share: float | None  # share of the time that the training waits for batches; None: too few batches
    batches: int  # measured for `wait_share`
    changes: Sequence[Change]  # of `pace`, the latest last
    cache: CacheUse | None  # None without a cache
    offer: CacheOffer | None  # a cache that would save time; None with a cache, or if none would
    bad_samples: int  # skipped
    bad: Sequence[Bad]  # the first bad samples

    @property
    def threads(self) -> int:
        """The number of threads that make batches; 0 if processes or the training itself make them."""
        return 0 if self.processes else self.pace.threads

    @property
    def slowest(self) -> str | None:
        """The name of the stage with the most wall time per sample; None before the first batch."""
        return max(self.stages, key=lambda stage: stage.wall_s).name if self.stages else None


def report_of(
    clock: StageClock, faults: Faults, pacer: AutoPacer, processes: int, cache: DecodedCache | CacheOffer | None
) -> LoaderReport:
    """Return the report of a loader from the objects that measure it."""
    stages = [
        StageCost(
            name=name,
            wall_s=spent.wall_s / spent.samples,
            cpu_s=spent.cpu_s / spent.samples,
            samples=spent.samples,
        )
        for name, spent in clock.spent().items()
        if spent.samples
    ]
    return LoaderReport(
        stages=stages,
        pace=pacer.pace,
        most=pacer.bounds.most,
        processes=processes,
        wait_share=pacer.waited_s / pacer.wall_s if pacer.wall_s else None,
        batches=pacer.batches,
        changes=pacer.tuning.changes,
        cache=None if cache is None or isinstance(cache, CacheOffer) else cache.use,
        offer=cache if isinstance(cache, CacheOffer) else None,
        bad_samples=faults.count,
        bad=tuple(faults.first),
    )
