"""All remedies that can be tried, one file each."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module

from paceline.explain.model import Gain
from paceline.improve.model import Candidate
from paceline.improve.situation import Situation

_UNKNOWN = 1.1  # by which what nothing is known of is put in order
_Propose = Callable[[Situation], Sequence[Candidate]]


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One kind of change: what is proposed in a situation, and its page."""

    id: str
    page: str
    candidates: _Propose


def switch(
    remedy: str,
    setting: str,
    value: object,
    *,
    gain_of: str,
    why: str,
    when: Callable[[Situation], bool] = lambda _: True,
) -> _Propose:
    """Return what proposes one numeric setting, where it is not in force yet.

    Args:
        remedy: Its id.
        setting: What it sets, such as ``compute.compile``.
        value: To what.
        gain_of: The id by which findings speak of it.
        why: What it does, in words.
        when: Whether it is worth a trial in a situation.
    """
    table, _, key = setting.partition(".")

    def propose(situation: Situation) -> list[Candidate]:
        if situation.setting(table, key) or not when(situation):
            return []
        predicted = situation.gain_of(gain_of)
        recipe = {table: {key: value}}
        return [Candidate(remedy=remedy, recipe=recipe, safety="numeric", predicted=predicted, why=why)]

    return propose


def at_most(propose: _Propose, bound: Callable[[Situation], float | None]) -> _Propose:
    """Return what proposes the same, and expects no more than a bound where no finding says what to expect.

    Args:
        propose: What proposes it.
        bound: The largest factor that it can gain in a situation; None where that is not known either.
    """

    def bounded(situation: Situation) -> list[Candidate]:
        found, most = propose(situation), bound(situation)
        if most is None:
            return list(found)
        return [one if one.predicted else replace(one, predicted=Gain(low=1.0, high=most)) for one in found]

    return bounded


@cache
def all_remedies() -> tuple[Remedy, ...]:
    """Return every remedy, by the name of its file."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return tuple(import_module(f"{__name__}.{name}").REMEDY for name in names)


def candidates(situation: Situation) -> list[Candidate]:
    """Return what all remedies propose, the largest expected gain first."""
    found = [one for remedy in all_remedies() for one in remedy.candidates(situation)]
    return sorted(found, key=expected, reverse=True)


def expected(candidate: Candidate) -> float:
    """Return the gain by which candidates are put in order: the middle of the predicted interval.

    One of which nothing is known comes before those of which is known that it is little.
    """
    if candidate.predicted is None:
        return _UNKNOWN
    return (candidate.predicted.low * candidate.predicted.high) ** 0.5
