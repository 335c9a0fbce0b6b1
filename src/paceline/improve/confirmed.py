"""Did what a recipe sets take hold? What the processes of a run have told of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from paceline.improve.child.held import FOLDER
from paceline.improve.recipe import Recipe, keys_of

_WITH_WORKERS = ("loader.persistent_workers", "loader.prefetch_factor")  # nothing to hold without workers
NOTHING = "the program has nothing it applies to"


def missing(recipe: Recipe, folder: Path) -> Mapping[str, str]:
    """Return the settings of a recipe that did not take hold in a run, each with the reason."""
    entries = [json.loads(x) for p in (folder / FOLDER).glob("*.jsonl") for x in p.read_text().splitlines()]
    lost = {entry["key"]: str(entry["what"]) for entry in entries if entry.get("given_up")}
    held = {entry["key"] for entry in entries if entry["held"]} - lost.keys()
    reasons = {entry["key"]: str(entry["what"]) for entry in entries if not entry["held"]} | lost
    wanted = [key for key in keys_of(recipe) if key not in held and key not in _WITH_WORKERS]
    return {key: reasons.get(key, NOTHING) for key in wanted}
