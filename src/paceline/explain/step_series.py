"""Which numbers stand for the steps of a run? One series of wall time and of each phase, ranks averaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np

from paceline.explain.facts import MIN_STEPS, Facts, RankFacts
from paceline.explain.statistics import Floats
from paceline.record.layout import PHASES

WALL = "wall"


def step_series(facts: Facts) -> Mapping[str, Floats]:
    """Return seconds of steady steps in order: ``wall``, and the nine phases, which add up to it."""
    ranks = _together(facts.ranks)
    common = _common(ranks)
    at = [np.isin(rank.rows["index"], common) for rank in ranks]

    def averaged(name: str) -> Floats:
        columns = [rank.walls if name == WALL else rank.phases[name] for rank in ranks]
        mean: Floats = np.mean([values[rows] for values, rows in zip(columns, at, strict=True)], axis=0)
        return mean

    return {name: averaged(name) for name in (WALL, *PHASES)}


def _common(ranks: Sequence[RankFacts]) -> Floats:
    """Return the numbers of the steps that all ranks have."""
    return reduce(np.intersect1d, [rank.rows["index"] for rank in ranks])


def _together(ranks: Sequence[RankFacts]) -> Sequence[RankFacts]:
    """Return the ranks to average over: all, or the slowest where they share too few steps to be training together."""
    least = min(len(rank.rows) for rank in ranks)
    if len(_common(ranks)) >= max(MIN_STEPS, least / 2):
        return ranks
    return [max(ranks, key=lambda rank: float(rank.walls.mean()))]
