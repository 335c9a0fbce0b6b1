"""Inside the program: how is a recipe applied to a program that nobody edited?

Loaded by the probe if ``PACELINE_BESIDE`` names this package: at the start of each process, and when torch has been
imported. One module per table of the recipe; what took hold is written beside the record, and so is what could not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from paceline.improve.child import allocator, fixed_draws, held, noise, ports, seeds

RECIPE = "PACELINE_RECIPE"  # the recipe, as JSON
CONDUCTOR = "PACELINE_CONDUCTOR"  # path of the socket of whoever conducts the trial
WITNESS = "PACELINE_WITNESS"  # set when what is computed is to be written down
SCRATCH = "PACELINE_SCRATCH"  # folder that takes what the program writes, when it is to leave nothing behind


def applied(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables by which a watched program applies a recipe to itself."""
    allocator_variables = allocator.environment(recipe.get("allocator", {}), os.environ)
    return {"PACELINE_BESIDE": __name__, RECIPE: json.dumps(recipe), **allocator_variables}


def begin() -> None:
    """Act before the program's first line: what it writes in a trial goes elsewhere from there on."""
    if os.environ.get(SCRATCH):
        from paceline.observe import shadow

        shadow.begin(os.environ[SCRATCH])


def patch(torch: Any) -> None:
    """Apply the recipe to torch; a table that cannot be applied is told, and the program goes on without it."""
    if os.environ.get(SCRATCH):
        from paceline.observe import shadow

        shadow.patch(torch)
    if os.environ.get(ports.PORTS):
        ports.patch(torch, os.environ[ports.PORTS])
    for table, settings in json.loads(os.environ.get(RECIPE, "{}")).items():
        try:
            import_module(f"{__name__}.{table}").patch(torch, settings)
        except Exception as error:
            for key in settings:
                held.refused(f"{table}.{key}", f"{type(error).__name__}: {error}")
    if os.environ.get(noise.NOISE):
        noise.patch(torch)
    if os.environ.get(seeds.SEED):
        seeds.patch(torch, int(os.environ[seeds.SEED]))
    if os.environ.get(fixed_draws.FIXED):
        fixed_draws.patch(torch)
    if os.environ.get(WITNESS):
        import_module(f"{__name__}.witness").patch(torch)
    if os.environ.get(CONDUCTOR):
        import_module(f"{__name__}.conducted").patch(torch, os.environ[CONDUCTOR])
