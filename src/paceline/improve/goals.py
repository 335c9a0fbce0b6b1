"""What shall become less: time, memory, or money? How a pair of blocks is judged, and what gain is worth having."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from paceline.improve.pairing import Pair

Aim = Literal["time", "memory"]
SLOWEST = 1.5  # times longer: that much a step may take for the sake of memory


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What is to be gained."""

    aim: Aim
    worth: float  # factor below which a gain is not worth having
    gain: Callable[[Pair], float | None]  # log(baseline / candidate) of what is to become less; None: not measured
    scatter: float | None  # of it between processes, standard deviation of the log; None: as found for time


def time_gain(pair: Pair) -> float:
    """Return log(baseline / candidate) of the wall time."""
    return math.log(pair.baseline.seconds / pair.candidate.seconds)


def memory_gain(pair: Pair) -> float | None:
    """Return log(baseline / candidate) of the most memory that was needed at once."""
    before, after = pair.baseline.peak_bytes, pair.candidate.peak_bytes
    return math.log(before / after) if before and after else None


TIME = Goal(aim="time", worth=1.02, gain=time_gain, scatter=None)
MEMORY = Goal(aim="memory", worth=1.05, gain=memory_gain, scatter=0.01)
GOALS: Mapping[str, Goal] = {"time": TIME, "memory": MEMORY, "cost": TIME}  # the same machine for less time costs less
