"""A comparison of two recipes: the recipes, the deadline, the goal (time or memory), and the result."""

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
SLOWEST = 1.5  # a change that saves memory may make a step this many times longer


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Mean seconds of a step under both recipes, over all pairs of blocks that count and over all ranks."""

    baseline_s: float
    candidate_s: float


@dataclass(frozen=True, kw_only=True)
class ComparisonSpec:
    """The two recipes of a comparison."""

    before: Recipe
    after: Recipe
    warmup_steps: int = 0  # steps to leave out of the comparison
    progress: float = 1.0  # progress of one candidate step towards the same loss, in baseline steps


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """The times at which a comparison has to end, in seconds of the monotonic clock."""

    usual: float
    promising: float  # if the candidate is probably faster, but not certainly yet
    large: float  # if the candidate is probably much faster
    startup_s: float = 0.0  # most seconds by which the deadline moves if the candidate is slow to start

    def later(self, begun: float, start_s: float) -> Deadline:
        """Return a deadline that is later by the additional seconds that the candidate took to start.

        Args:
            begun: The time at which the candidate was started, in seconds of the monotonic clock.
            start_s: Seconds that the baseline takes to start.
        """
        late_s = min(self.startup_s, max(0.0, time.monotonic() - begun - start_s))
        return replace(self, usual=self.usual + late_s, promising=self.promising + late_s, large=self.large + late_s)


@dataclass(frozen=True, kw_only=True)
class ComparisonResult:
    """The result of comparing two recipes in one or more rounds."""

    speedup: Interval
    saving: Interval | None  # memory saving as a factor; None if it was not measured
    cpu_ratio: float | None
    rounds: Sequence[ComparisonRound]
    verdict: str  # "win", "no-win", "slow" (less memory, but far more time) or "undecided"

    @property
    def step_times(self) -> StepTimes | None:
        """The mean step times of the pairs that count, or None if there are no such pairs."""
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
    """The quantity that a change is meant to reduce: time or memory."""

    aim: Aim
    worth: float  # gains below this factor are not worth having
    values: Callable[[BlockPair], Values | None]  # the quantity for baseline and candidate; None if it was not measured
    # standard deviation of its log between processes; None: use the measured one of the step time
    scatter: float | None


def block_seconds(pair: BlockPair) -> Values:
    """Return the seconds of the block under the baseline and under the candidate."""
    return pair.baseline.seconds, pair.candidate.seconds


def peak_bytes_of(pair: BlockPair) -> Values | None:
    """Return the peak memory in bytes under the baseline and under the candidate, or None if it was not measured."""
    before, after = pair.baseline.peak_bytes, pair.candidate.peak_bytes
    return (before, after) if before and after else None


TIME = Goal(aim="time", worth=1.02, values=block_seconds, scatter=None)
MEMORY = Goal(aim="memory", worth=1.05, values=peak_bytes_of, scatter=0.01)
GOALS: Mapping[str, Goal] = {"time": TIME, "memory": MEMORY, "cost": TIME}  # the cost is the time of the same machine
