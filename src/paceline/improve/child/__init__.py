"""Inside the program: how is a recipe applied to a program that nobody edited?

Loaded by the probe when torch has been imported, if ``PACELINE_BESIDE`` names this package. One module per table of the
recipe; what took hold is written beside the record, and so is what could not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from paceline.improve.child import held

RECIPE = "PACELINE_RECIPE"  # the recipe, as JSON
CONDUCTOR = "PACELINE_CONDUCTOR"  # path of the socket of whoever conducts the trial
WITNESS = "PACELINE_WITNESS"  # set when what is computed is to be written down
SCRATCH = "PACELINE_SCRATCH"  # folder that takes what the program writes, when it is to leave nothing behind


def applied(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables by which a watched program applies a recipe to itself."""
    return {"PACELINE_BESIDE": __name__, RECIPE: json.dumps(recipe)}


def patch(torch: Any) -> None:
    """Apply the recipe to torch; a table that cannot be applied is told, and the program goes on without it."""
    if os.environ.get(SCRATCH):
        import_module(f"{__name__}.shadow").patch(torch, os.environ[SCRATCH])
    for table, settings in json.loads(os.environ.get(RECIPE, "{}")).items():
        try:
            import_module(f"{__name__}.{table}").patch(torch, settings)
        except Exception as error:
            for key in settings:
                held.refused(f"{table}.{key}", f"{type(error).__name__}: {error}")
    if os.environ.get(WITNESS):
        import_module(f"{__name__}.witness").patch(torch)
    if os.environ.get(CONDUCTOR):
        import_module(f"{__name__}.conducted").patch(torch, os.environ[CONDUCTOR])
