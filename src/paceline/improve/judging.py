"""When a round of a comparison has gone on for long enough, by the interval of the gain so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.core.statistics import Interval
from paceline.improve.pairing import Judges, Outlook, Pair
from paceline.improve.statistics import LARGE, decided, wants_processes

_FUTILE = (0.9, 1.15)  # speed-up, and its upper end: who is so much slower is not looked at any longer
_PROMISING = (1.05, 0.8)  # speed-up, and its lower end
_SHARP = 1.2  # an interval whose ends are this close says enough
_ROUGH = 2.0  # its ends are no further apart than this factor, if some pairs are enough for that
_FEWEST_PAIRS, _ENOUGH_LARGE, _ENOUGH_PAIRS = 4, 6, 12


@dataclass(frozen=True)
class Rules:
    """What a gain is judged by.

    Attributes:
        worth: Factor below which a gain is not worth having.
        fewest: Pairs that a small gain needs.
        scatter: Standard deviation of the log of what is to be gained, between processes.
        rounds: Rounds of the comparison, this one included.
    """

    worth: float
    fewest: int
    scatter: float
    rounds: int


def judges_of(gained: Callable[[Sequence[Pair]], Interval], rules: Rules) -> Judges:
    """Return what decides that a round has gone on for long enough.

    Args:
        gained: Returns the gain by the pairs of the round so far, and by those of earlier rounds.
        rules: What it is judged by.
    """

    def enough(pairs: Sequence[Pair]) -> bool:
        found = gained(pairs)
        if found.low >= LARGE or found.high <= 1 / LARGE:
            most = _ENOUGH_LARGE if math.isfinite(found.high) else max(_ENOUGH_PAIRS, rules.fewest)
            return found.high <= _ROUGH * found.low or len(pairs) >= most
        if len(pairs) < _FEWEST_PAIRS:
            return False
        if found.high < rules.worth or (found.value < _FUTILE[0] and found.high < _FUTILE[1]):
            return True
        if decided(found, rules.worth, rules.fewest) is None:
            many = len(pairs) >= max(_ENOUGH_PAIRS, rules.fewest)
            return many and wants_processes(found, rules.scatter, rules.rounds)
        return found.high <= _SHARP * found.low or len(pairs) >= _ENOUGH_PAIRS

    def outlook(pairs: Sequence[Pair]) -> Outlook:
        found = gained(pairs)
        if decided(found, rules.worth, rules.fewest) is not None:
            return "open"
        if found.value >= LARGE and (found.low >= _PROMISING[1] or found.count < rules.fewest):
            return "large"
        return "promising" if found.value >= _PROMISING[0] and found.low >= _PROMISING[1] else "open"

    return Judges(enough=enough, outlook=outlook)
