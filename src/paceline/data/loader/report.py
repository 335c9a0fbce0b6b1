"""The report of a loader: what its stages took, its bad samples, its cache and its pace."""

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
    """What one stage takes of a sample, as far as it was timed."""

    name: str
    wall_s: float  # of a sample, of the thread that makes it
    cpu_s: float
    samples: int  # that were timed


@dataclass(frozen=True, kw_only=True)
class LoaderReport:
    """How a loader did so far."""

    stages: Sequence[StageCost]
    pace: Pace  # threads, readers and ready batches now
    most: Pace  # what they may be
    processes: int  # in place of threads
    wait_share: float | None  # of the time in which batches were taken; None: too few were
    batches: int  # in that time
    changes: Sequence[Change]  # of the pace, the latest last
    cache: CacheUse | None  # what it holds; None: there is none
    offer: CacheOffer | None  # a cache that may pay; None: there is one, or none would
    bad_samples: int  # that were skipped
    bad: Sequence[Bad]  # a few of them

    @property
    def threads(self) -> int:
        """Threads that make batches now; 0: processes do, or the training itself."""
        return 0 if self.processes else self.pace.threads

    @property
    def slowest(self) -> str | None:
        """The stage that takes most of the time of threads; None where nothing was made yet."""
        return max(self.stages, key=lambda stage: stage.wall_s).name if self.stages else None


def report_of(
    clock: StageClock, faults: Faults, pacer: AutoPacer, processes: int, cache: DecodedCache | CacheOffer | None
) -> LoaderReport:
    """Put together what was counted."""
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
