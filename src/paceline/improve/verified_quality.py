"""Training to the same loss with and without the kept changes, over several seeds."""

from __future__ import annotations

from collections.abc import Callable

from paceline.core.recipe import BASELINE, Recipe
from paceline.improve.quality import Curve, Quality, compared
from paceline.improve.workshop import Workshop

_SEEDS = (0, 1, 2)
_TO_A_LOSS_S = 60.0  # of steps of a run


def verified(workshop: Workshop, best: Recipe, told: Callable[[str], None]) -> Quality | None:
    """Run the best and the program as it was to the same loss, over several seeds."""
    curves: tuple[list[Curve], list[Curve]] = ([], [])
    for seed in _SEEDS:
        told(f"training to the same loss with seed {seed}, without and with the kept changes")
        for recipe, found in zip((BASELINE, best), curves, strict=True):
            found.append(workshop.curve(recipe, seed, _TO_A_LOSS_S))
    return compared(*curves, _SEEDS)
