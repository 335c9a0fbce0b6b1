"""Which changes, not proven in the time they had, may yet be a proven win: together, by going on, or as a better value?

Gains of 5 to 8% are smaller than what two processes of the same program differ by on many machines. Several of them
are not: a transformer whose two changes were measured at 1.07x and 1.08x, neither certain, gained 1.17x by both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.core.recipe import Recipe, keys_of, merged
from paceline.core.remedies import least_safe
from paceline.core.statistics import Interval
from paceline.explain.model import Gain
from paceline.improve.model import Candidate
from paceline.improve.pairing import Round
from paceline.improve.statistics import product

_MOST_ROUNDS = 9  # of a race: what is not certain then is left
_CLEARLY = 1.1  # faster: less is not worth a run with what was not proven
_LEAST = 1.01  # measured of each: what gained less is left out
_SURE = 1 / 3  # of how far the bound is off, on the log scale: so far off must a value be from no gain
_ONE_OF = frozenset({"optimizer.fused", "optimizer.foreach"})  # torch takes one of them


@dataclass(frozen=True, kw_only=True)
class Undecided:
    """A change that was tried, and neither proven nor ruled out."""

    candidate: Candidate
    base: Recipe  # what was kept then
    gained: Interval  # as a factor
    rounds: Sequence[Round] = ()  # by which it was measured


def together(tried: Sequence[Undecided], best: Recipe, worth: float) -> Candidate | None:
    """Return what undecided changes make together on top of what is kept; None where they are fewer than two.

    Of changes that exclude each other the one that was measured to gain most is taken.

    Args:
        tried: In any order.
        best: What is kept by now; changes of settings that it has changed since are left out.
        worth: Factor below which a gain is not worth having.
    """
    chosen: list[Undecided] = []
    for one in sorted(tried, key=lambda one: one.gained.value, reverse=True):
        if one.gained.value >= _LEAST and _stands(one, best) and not any(_excludes(one, other) for other in chosen):
            chosen.append(one)
    if len(chosen) < 2 or math.prod(one.gained.value for one in chosen) < worth:
        return None
    return Candidate(
        remedy=" + ".join(one.candidate.remedy for one in chosen),
        recipe=merged(*(one.candidate.recipe for one in chosen)),
        safety=least_safe(one.candidate.safety for one in chosen),
        predicted=_predicted([one.gained for one in chosen]),
        why="each change seemed to make steps faster, but the gain of no single change was certain",
        begins_s=sum(one.candidate.begins_s for one in chosen),
        warmup_steps=max((one.candidate.warmup_steps or 0 for one in chosen), default=0) or None,
        aims=chosen[0].candidate.aims,
        progress=math.prod(one.candidate.progress for one in chosen),
    )


def earlier_of(tried: Sequence[Undecided], best: Recipe, recipe: Recipe) -> Undecided | None:
    """Return the earlier, undecided comparison of this change with the current baseline; None if there is none.

    Args:
        tried: In any order.
        best: What is kept by now.
        recipe: The change.
    """
    return next((one for one in tried if one.base == best and one.candidate.recipe == recipe), None)


def unfinished(tried: Sequence[Undecided], best: Recipe, worth: float) -> Undecided | None:
    """Return the change that gained most of those whose race may go on: what is kept is still what it ran against.

    Args:
        tried: In any order.
        best: What is kept by now.
        worth: Factor below which a gain is not worth having.
    """
    found = [o for o in tried if o.base == best and o.gained.value >= worth and len(o.rounds) < _MOST_ROUNDS]
    return max(found, key=lambda one: one.gained.value, default=None)


def looked_best(tried: Sequence[Undecided]) -> list[Undecided]:
    """Return the changes of the unchanged program that looked clearly faster but were not proven, the fastest first.

    Args:
        tried: In any order.
    """
    same = [one for one in tried if not one.base and one.candidate.safety != "semantic"]
    found = [one for one in same if one.gained.value >= _CLEARLY]
    return sorted(found, key=lambda one: one.gained.value, reverse=True)


def is_better_value(gained: Interval, kept: Interval, worth: float) -> bool:
    """Say whether another value of a setting is the one to take, though it is not certain which of the two is better.

    Some value has to be taken: so of two that are both proven against the program without them, it is the one that
    measured better, unless that is a toss-up.

    Args:
        gained: By the other value, as a factor of what is kept.
        kept: Gained by the value that is kept.
        worth: Factor below which a gain is not worth having.
    """
    if gained.value < worth or gained.low <= 0 or kept.low * gained.low < worth:
        return False
    return math.log(gained.value) >= _SURE * math.log(gained.value / gained.low)


def _stands(one: Undecided, best: Recipe) -> bool:
    """Say whether what a change sets is still as it was when it was tried."""
    return all(_value(best, key) == _value(one.base, key) for key in keys_of(one.candidate.recipe))


def _excludes(one: Undecided, other: Undecided) -> bool:
    own, others = set(keys_of(one.candidate.recipe)), set(keys_of(other.candidate.recipe))
    return bool(own & others) or (bool(own & _ONE_OF) and bool(others & _ONE_OF))


def _value(recipe: Recipe, key: str) -> Any:
    table, _, name = key.partition(".")
    return recipe.get(table, {}).get(name)


def _predicted(gained: Sequence[Interval]) -> Gain | None:
    made = product(gained)
    return Gain(low=max(1.0, made.low), high=made.high) if made is not None else None
