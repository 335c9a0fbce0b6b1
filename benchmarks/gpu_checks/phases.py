"""Are phases timed by events what the profiler says of the same steps? Within 3%, on a transformer and a CNN."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from _truth import compared, phases_of
from _watched import basics, figures_of, watched

LIMIT_S = 150
TRACED = 24
STEPS = 150
TOLERANCE = 0.03
LEAST_ROWS = 5


def check() -> dict[str, Any]:
    figures: dict[str, Any] = {}
    failed: list[str] = []
    not_done: list[str] = []
    for program in ("transformer", "cnn"):
        found = one(program)
        figures[program] = found["figures"]
        failed += [f"{program}: {text}" for text in found["failed"]]
        not_done += [f"{program}: {text}" for text in found["not_done"]]
    return {"figures": figures, "failed": failed, "not_done": not_done}


def one(program: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        trace = Path(place) / "trace.json"
        with watched(f"{program}.py", "--steps", str(STEPS), "--trace", str(trace), seconds=70) as found:
            failed, figures = basics(found, STEPS), figures_of(found)
        truth = phases_of(trace) if trace.exists() else {"steps": 0}
    rows = [row for row in found.timed if STEPS - TRACED < row["index"] < STEPS]
    figures["traced"] = truth
    if not truth["steps"]:
        return {"figures": figures, "failed": [*failed, "the profiler's trace has no phases"], "not_done": []}
    if len(rows) < LEAST_ROWS:
        why = f"events timed {len(rows)} of the traced steps, and {LEAST_ROWS} are needed"
        return {"figures": figures, "failed": failed, "not_done": [why]}
    figures["compared"] = beside = compared(truth, rows)
    if beside["largest_error"] > TOLERANCE:
        failed.append(f"a phase differs from the profiler's by {beside['largest_error']:.1%} of a step")
    if (beside["largest_relative_error"] or 0.0) > TOLERANCE:
        failed.append(f"a large phase differs from the profiler's by {beside['largest_relative_error']:.1%} of itself")
    return {"figures": figures, "failed": failed, "not_done": []}
