"""What shall become less: time, memory, or money? How a pair of blocks is judged, and what gain is worth having."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from paceline.improve.pairing import Pair
from paceline.improve.statistics import Values

Aim = Literal["time", "memory"]
SLOWEST = 1.5  # times longer: that much a step may take for the sake of memory


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What is to be gained."""

    aim: Aim
    worth: float  # factor below which a gain is not worth having
    values: Callable[[Pair], Values | None]  # what is to become less, of both; None: not measured
    scatter: float | None  # of it between processes, standard deviation of the log; None: as found for time


def seconds(pair: Pair) -> Values:
    """Return the wall time of the baseline and of the candidate."""
    return pair.baseline.seconds, pair.candidate.seconds


def peaks(pair: Pair) -> Values | None:
    """Return the most memory that both needed at once, in bytes."""
    before, after = pair.baseline.peak_bytes, pair.candidate.peak_bytes
    return (before, after) if before and after else None


TIME = Goal(aim="time", worth=1.02, values=seconds, scatter=None)
MEMORY = Goal(aim="memory", worth=1.05, values=peaks, scatter=0.01)
GOALS: Mapping[str, Goal] = {"time": TIME, "memory": MEMORY, "cost": TIME}  # the same machine for less time costs less
