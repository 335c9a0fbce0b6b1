"""Check that `tune` gives a slow data set worker processes, and that its predicted gain of a whole run is right."""

from __future__ import annotations

from typing import Any

from _tuned_whole import tuned_whole

LIMIT_S = 180


def check() -> dict[str, Any]:
    return tuned_whole("slow_data.py", ("--steps", "400"), {"loader.workers"})
