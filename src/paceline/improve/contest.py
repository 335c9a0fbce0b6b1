"""What is raced: one recipe against another, until when, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.core.recipe import Recipe
from paceline.core.statistics import Interval
from paceline.improve.model import StepTimes
from paceline.improve.pairing import Round


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Which recipe is held against which."""

    before: Recipe
    after: Recipe
    warmup_steps: int = 0  # that do not count
    progress: float = 1.0  # that a step of the second makes towards the same loss, in steps of the first


@dataclass(frozen=True, kw_only=True)
class Until:
    """When a race has to end, on the monotonic clock."""

    usual: float
    promising: float  # where it looks like a win, but is not certain yet
    large: float  # where it looks like a large win
    begins_s: float = 0.0  # later than that, where the second takes so long to begin

    def later(self, begun: float, start_s: float) -> Until:
        """Return the same for what began before now, and would have taken so long without what is tried."""
        late_s = min(self.begins_s, max(0.0, time.monotonic() - begun - start_s))
        return replace(self, usual=self.usual + late_s, promising=self.promising + late_s, large=self.large + late_s)


@dataclass(frozen=True, kw_only=True)
class Race:
    """A recipe against another, over some rounds."""

    speedup: Interval
    saving: Interval | None  # of memory, as a factor; None: not measured
    cpu_ratio: float | None
    rounds: Sequence[Round]
    verdict: str  # win, no-win, slow (less memory for far more time), undecided

    @property
    def step_times(self) -> StepTimes | None:
        """The mean step times of the pairs that count; None if there is none."""
        pairs = [pair for each in self.rounds for pair in each.fair]
        steps = sum(pair.baseline.steps for pair in pairs)
        if not steps:
            return None
        return StepTimes(
            baseline_s=sum(pair.baseline.seconds for pair in pairs) / steps,
            candidate_s=sum(pair.candidate.seconds for pair in pairs) / steps,
        )
