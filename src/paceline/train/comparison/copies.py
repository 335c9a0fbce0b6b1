"""A copy of the model from before it is split, for the comparison of the first step."""

from __future__ import annotations

import copy
import sys
from typing import Any

from paceline.train.comparison import advice
from paceline.train.recipe import Recipe
from paceline.train.world import World


def copied(model: Any, world: World, recipe: Recipe) -> Any:
    """Return a copy of a model for the comparison; None where there is none to make."""
    if world.mesh is None or recipe.apart or recipe.precision.fp8 or not recipe.checks.first_step:
        return None
    try:
        found = copy.deepcopy(model)
    except Exception as error:  # what deepcopy cannot copy is the model's own
        if world.rank == 0:
            why = f"it cannot be copied ({type(error).__name__}: {error})"
            sys.stderr.write(f"paceline: {advice.of_no_comparison(world.layout, type(model).__name__, why)}\n")
        return None
    for own, other in zip(model.parameters(), found.parameters(), strict=True):
        for hook in (own._backward_hooks or {}).values():  # of the user's, which a copy does not have
            if other.requires_grad:
                other.register_hook(hook)
    return found
