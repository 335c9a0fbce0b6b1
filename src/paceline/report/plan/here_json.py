"""A prediction for this machine as JSON, schema `paceline.plan-here/1`."""

from __future__ import annotations

from typing import Any

import msgspec

from paceline.plan.calibrate.local_prediction import LocalPrediction
from paceline.plan.calibrate.profile import Profile

SCHEMA = "paceline.plan-here/1"


def to_json(found: LocalPrediction, profile: Profile, ranks: int) -> dict[str, Any]:
    """Return the JSON object that `--json` writes."""
    return {
        "schema": SCHEMA,
        "machine": msgspec.to_builtins(profile.made),
        "ranks": ranks,
        "step_s": found.step_s,
        "step_low_s": found.step_low_s,
        "step_high_s": found.step_high_s,
        "step_parts_s": dict(found.step_parts_s),
        "memory_bytes": found.memory_bytes,
        "memory_parts_bytes": dict(found.memory_parts_bytes),
        "reference_s": found.reference.seconds,
        "reference_now_s": found.now.seconds if found.now else None,
        "pace": found.pace,
        "told": list(found.told),
    }
