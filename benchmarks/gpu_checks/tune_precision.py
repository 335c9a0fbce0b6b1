"""Check that `tune` finds a faster format for products in fp32, and that its predicted gain of a whole run is right."""

from __future__ import annotations

from typing import Any

from _tuned_whole import tuned_whole

LIMIT_S = 180


def check() -> dict[str, Any]:
    return tuned_whole("precision_unused.py", ("--steps", "60"), {"precision.tf32", "precision.autocast"})
