"""What did the profiler window show? Operators by their own time, and how many there are in a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from paceline.record.run import Rank

_TINY_S = 20e-6


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One operator's time in the window, without that of the operators it called."""

    name: str
    count: int
    self_s: float


@dataclass(frozen=True, kw_only=True)
class Window:
    """The profiler window of one rank."""

    steps: int
    wall_s: float
    operators: Sequence[Operator]  # most self time first
    flops_per_step: float | None

    @property
    def operators_per_step(self) -> float:
        """How many operators the host issued in a step."""
        return sum(o.count for o in self.operators) / self.steps

    @property
    def operator_s(self) -> float:
        """Seconds spent in operators."""
        return sum(o.self_s for o in self.operators)

    @property
    def tiny_share(self) -> float:
        """Share of operator time in operators that take less than 20 µs each on average."""
        tiny = sum(o.self_s for o in self.operators if o.self_s < _TINY_S * o.count)
        return tiny / self.operator_s if self.operator_s > 0 else 0.0


def read_window(rank: Rank) -> Window | None:
    """Read the summary that the probe made of its profiler window; None when none was taken."""
    notes = rank.noted("window")
    if not notes:
        return None
    note: dict[str, Any] = dict(notes[-1])
    operators = msgspec.convert(note.get("operators", []), list[Operator])
    if not operators or not note.get("steps"):
        return None
    return Window(
        steps=int(note["steps"]),
        wall_s=float(note["wall_s"]),
        operators=sorted(operators, key=lambda o: -o.self_s),
        flops_per_step=note.get("flops_per_step"),
    )
