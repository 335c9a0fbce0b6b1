"""The settings of a recipe that were applied in a run, as recorded by the processes of the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.core.errors import UsageError
from paceline.core.recipe import Recipe, recipe_content, setting_keys
from paceline.inprocess.settings.confirmation import FOLDER
from paceline.tune.trials.blocks import TrialFailed

# without workers, these settings have no effect
_WITH_WORKERS = ("loader.persistent_workers", "loader.prefetch_factor")
NOTHING = "nothing in the program uses this setting"
# Reasons for settings that no process has recorded, where a setting needs another one.
_UNRECORDED = {"loader.cache": "no loader without workers reads training samples; set loader.num_workers = 0 as well"}


def unapplied_settings(recipe: Recipe, folder: Path) -> Mapping[str, str]:
    """Return the settings of a recipe that were not applied in a run, with the reasons."""
    held, reasons = _confirmations(folder)
    wanted = [key for key in setting_keys(recipe) if key not in held and key not in _WITH_WORKERS]
    return {key: reasons.get(key, _UNRECORDED.get(key, NOTHING)) for key in wanted}


def is_in_force(recipe_file: Path, folder: Path) -> bool:
    """Return whether a recipe had an effect in a run; also True if the recipe is empty or can no longer be read.

    Args:
        recipe_file: The file of the recipe.
        folder: The folder of the run.
    """
    try:
        content = recipe_content(recipe_file)
    except UsageError:
        return True
    wanted = setting_keys({table: found for table, found in content.items() if isinstance(found, Mapping)})
    return not wanted or bool(_confirmations(folder)[0])


def refused_settings(recipe: Recipe, folder: Path) -> Mapping[str, str]:
    """Return the settings that were not applied in a run although a process recorded them, with the reasons.

    A setting without a record is left out, because it can still be applied later in the run.
    """
    unrecorded = (NOTHING, *_UNRECORDED.values())
    return {key: why for key, why in unapplied_settings(recipe, folder).items() if why not in unrecorded}


def require_applied(lost: Mapping[str, str]) -> None:
    """Raise an error if a setting of a recipe was not applied.

    Args:
        lost: The settings that were not applied, with the reasons.

    Raises:
        TrialFailed: A setting was not applied.
    """
    for key, why in lost.items():
        raise TrialFailed(f"{key} had no effect: {why}")


def revoked_settings(recipe: Recipe, folder: Path) -> Mapping[str, str]:
    """Return the settings of a recipe that were applied in a run and later switched off, with the reasons."""
    lost = {entry["key"]: str(entry["what"]) for entry in _entries(folder) if entry.get("given_up")}
    return {key: why for key, why in lost.items() if key in setting_keys(recipe)}


def _entries(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(x) for p in (folder / FOLDER).glob("*.jsonl") for x in p.read_text().splitlines()]


def _confirmations(folder: Path) -> tuple[set[str], Mapping[str, str]]:
    """Return the settings that are applied, and the reasons why other settings are not."""
    entries = _entries(folder)
    lost = {entry["key"]: str(entry["what"]) for entry in entries if entry.get("given_up")}
    held = {entry["key"] for entry in entries if entry["held"]} - lost.keys()
    return held, {entry["key"]: str(entry["what"]) for entry in entries if not entry["held"]} | lost
