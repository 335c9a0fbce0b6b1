"""Which numbers stand for the steps of two runs? Wall time and phases of the steps that both have, ranks averaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np

from paceline.core.statistics import Floats
from paceline.explain.facts import MIN_STEPS, Facts, RankFacts
from paceline.record.layout import PHASES

WALL = "wall"

Series = Mapping[str, Floats]
"""Seconds of steps in order: ``wall``, and the nine phases, which add up to it."""


def paired_series(before: Facts, after: Facts) -> tuple[Series, Series]:
    """Return the series of two runs over the steady steps that both have, so that the n-th of each belong together."""
    ranks = _together(before.ranks), _together(after.ranks)
    common = _shared_steps([*ranks[0], *ranks[1]])
    return _series(ranks[0], common), _series(ranks[1], common)


def _series(ranks: Sequence[RankFacts], common: Floats) -> Series:
    at = [np.isin(rank.rows["index"], common) for rank in ranks]

    def averaged(name: str) -> Floats:
        columns = [rank.walls if name == WALL else rank.phases[name] for rank in ranks]
        mean: Floats = np.mean([values[rows] for values, rows in zip(columns, at, strict=True)], axis=0)
        return mean

    return {name: averaged(name) for name in (WALL, *PHASES)}


def _shared_steps(ranks: Sequence[RankFacts]) -> Floats:
    """Return the numbers of the steps that all ranks have."""
    numbers = [rank.rows["index"] for rank in ranks]
    return reduce(lambda one, other: np.intersect1d(one, other, assume_unique=True), numbers)


def _together(ranks: Sequence[RankFacts]) -> Sequence[RankFacts]:
    """Return the ranks to average over: all, or the slowest where they share too few steps to be training together."""
    least = min(len(rank.rows) for rank in ranks)
    if len(_shared_steps(ranks)) >= max(MIN_STEPS, least / 2):
        return ranks
    return [max(ranks, key=lambda rank: float(rank.walls.mean()))]
