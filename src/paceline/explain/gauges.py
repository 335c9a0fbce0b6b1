"""Which readings are drawn, and which are missing? From gauge lines to thinned series with units."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.explain.model import GaugeSeries
from paceline.explain.statistics import thin
from paceline.record.run import JsonObject, Run

_MOST_POINTS = 400


def missing_gauges(run: Run) -> dict[str, str]:
    """Return what the gauges could not read, and why."""
    found: dict[str, str] = {}
    for lines in run.gauges.values():
        for line in lines:
            if line.get("kind") == "header":
                found |= {str(k): str(v) for k, v in (line.get("unavailable") or {}).items()}
    return found


def gauge_series(run: Run) -> list[GaugeSeries]:
    """Return the series worth drawing, host by host."""
    return []
