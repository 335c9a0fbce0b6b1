"""Apply a recipe to an unedited program, inside its processes.

The recorder loads this package if ``PACELINE_BESIDE`` names it, at the start of each process and after the import of
torch. There is one module per table of the recipe. Applied settings and failures are written next to the record.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from paceline.inprocess.sandbox import network, ports, trackers
from paceline.inprocess.settings import allocator, confirmation, seeds
from paceline.inprocess.settings.trial import fixed_draws, gradient_noise, short_epochs

RECIPE = "PACELINE_RECIPE"  # the recipe, as JSON
CONDUCTOR = "PACELINE_CONDUCTOR"  # path of the socket of the process that controls the trial
WITNESS = "PACELINE_WITNESS"  # set if checksums are recorded
TRACKERS_OFF = "PACELINE_TRACKERS_OFF"  # set if experiment trackers are switched off
SCRATCH = "PACELINE_SCRATCH"  # folder for the program's writes in a write sandbox

_SWITCHES: Mapping[str, Callable[[Any, str], None]] = {  # variables that switch additional patches on
    gradient_noise.NOISE: lambda torch, _: gradient_noise.patch(torch),
    seeds.SEED: lambda torch, seed: seeds.patch(torch, int(seed)),
    fixed_draws.FIXED: lambda torch, _: fixed_draws.patch(torch),
    short_epochs.BATCHES: lambda torch, batches: short_epochs.patch(torch, int(batches)),
}


def applied(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables with which a watched program applies a recipe to itself."""
    allocator_variables = allocator.environment(recipe.get("allocator", {}), os.environ)
    return {"PACELINE_BESIDE": __name__, RECIPE: json.dumps(recipe), **allocator_variables}


def begin() -> None:
    """Install the patches that must precede the program's first line, such as the write sandbox."""
    if os.environ.get(SCRATCH):
        from paceline.inprocess.sandbox import write_sandbox

        write_sandbox.begin(os.environ[SCRATCH])
    if os.environ.get(network.MODE):
        network.begin()
    if os.environ.get(TRACKERS_OFF):
        trackers.begin()


def patch(torch: Any) -> None:
    """Apply the recipe to torch. If a table cannot be applied, record the reason and continue without it."""
    if os.environ.get(SCRATCH):
        from paceline.inprocess.sandbox import write_sandbox

        write_sandbox.patch(torch)
    if os.environ.get(ports.PORTS):
        ports.patch(torch, os.environ[ports.PORTS])
    for table, settings in json.loads(os.environ.get(RECIPE, "{}")).items():
        try:
            import_module(f"{__name__}.{table}").patch(torch, settings)
        except Exception as error:
            for key in settings:
                confirmation.refused(f"{table}.{key}", f"{type(error).__name__}: {error}")
    for variable, act in _SWITCHES.items():
        if os.environ.get(variable):
            act(torch, os.environ[variable])
    for variable, name in ((WITNESS, "trial.checksums"), (CONDUCTOR, "trial.step_control")):
        if os.environ.get(variable):
            import_module(f"{__name__}.{name}").patch(torch, os.environ[variable])
