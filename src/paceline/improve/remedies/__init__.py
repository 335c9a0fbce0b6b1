"""All remedies that can be tried, one file each."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from paceline.improve.model import Candidate
from paceline.improve.situation import Situation


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One kind of change: what is proposed in a situation, and its page."""

    id: str
    page: str
    candidates: Callable[[Situation], Sequence[Candidate]]


def switch(
    remedy: str,
    setting: str,
    value: object,
    *,
    gain_of: str,
    why: str,
    when: Callable[[Situation], bool] = lambda _: True,
) -> Callable[[Situation], list[Candidate]]:
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


_UNKNOWN = 1.1


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
