"""A comparison of two recipes: what is compared, when it ends, what is to become less, and the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from paceline.core.recipe import Recipe
from paceline.core.statistics import Interval
from paceline.tune.comparison.paired_blocks import BlockPair, ComparisonRound
from paceline.tune.comparison.statistics import Values

Aim = Literal["time", "memory"]
SLOWEST = 1.5  # times longer: that much a step may take for the sake of memory


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Mean seconds of a step in the pairs of blocks that a speed-up is computed from, of all ranks together."""

    baseline_s: float
    candidate_s: float


@dataclass(frozen=True, kw_only=True)
class ComparisonSpec:
    """The two recipes of a comparison."""

    before: Recipe
    after: Recipe
    warmup_steps: int = 0  # that do not count
    progress: float = 1.0  # that a step of the second makes towards the same loss, in steps of the first


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """When a comparison has to end, in seconds of the monotonic clock."""

    usual: float
    promising: float  # where it looks like a win, but is not certain yet
    large: float  # where it looks like a large win
    startup_s: float = 0.0  # later than that, where the second takes so long to begin

    def later(self, begun: float, start_s: float) -> Deadline:
        """Return the same for what began before now, and would have taken so long without what is tried."""
        late_s = min(self.startup_s, max(0.0, time.monotonic() - begun - start_s))
        return replace(self, usual=self.usual + late_s, promising=self.promising + late_s, large=self.large + late_s)


@dataclass(frozen=True, kw_only=True)
class ComparisonResult:
    """The result of comparing two recipes over some rounds."""

    speedup: Interval
    saving: Interval | None  # of memory, as a factor; None: not measured
    cpu_ratio: float | None
    rounds: Sequence[ComparisonRound]
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


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What is to be gained."""

    aim: Aim
    worth: float  # factor below which a gain is not worth having
    values: Callable[[BlockPair], Values | None]  # what is to become less, of both; None: not measured
    scatter: float | None  # of it between processes, standard deviation of the log; None: as found for time


def block_seconds(pair: BlockPair) -> Values:
    """Return the wall time of the baseline and of the candidate."""
    return pair.baseline.seconds, pair.candidate.seconds


def peak_bytes_of(pair: BlockPair) -> Values | None:
    """Return the most memory that both needed at once, in bytes."""
    before, after = pair.baseline.peak_bytes, pair.candidate.peak_bytes
    return (before, after) if before and after else None


TIME = Goal(aim="time", worth=1.02, values=block_seconds, scatter=None)
MEMORY = Goal(aim="memory", worth=1.05, values=peak_bytes_of, scatter=0.01)
GOALS: Mapping[str, Goal] = {"time": TIME, "memory": MEMORY, "cost": TIME}  # the same machine for less time costs less
