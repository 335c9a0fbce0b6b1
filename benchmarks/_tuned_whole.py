"""Search with `paceline tune` on a GPU, and time whole runs of the program with and without the recipe."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PARTS = Path(__file__).resolve().parent
MANY = ("--steps", "1000000")
BUDGET = "45s"


def tuned_whole(program: str, whole: tuple[str, ...], wanted: set[str]) -> dict[str, Any]:
    """Tune a program, then run it whole with and without the recipe; one of the remedies `wanted` must be kept."""
    found = tuned(str(PARTS / "gpu_programs" / program), whole)
    return {"failed": faults(found, wanted), "not_done": [], "figures": found}


def tuned(program: str, whole: tuple[str, ...]) -> dict[str, Any]:
    """Search, then run the program with and without the recipe, twice each in turn."""
    with tempfile.TemporaryDirectory() as place:
        tune = ["tune", "--allow", "numeric", "--budget", BUDGET, "--json", "tune.json", "--recipe", "recipe.toml"]
        searched = paceline(place, *tune, program, *MANY)
        file, recipe = Path(place) / "tune.json", Path(place) / "recipe.toml"
        found = {"code": searched.returncode, "seconds": searched.seconds, "errors": searched.stderr[-1500:]}
        found["result"] = json.loads(file.read_text()) if file.exists() else None
        if recipe.exists():
            found["recipe"] = recipe.read_text()
            used = ("run", "--quiet", "--no-profile", "--recipe", "recipe.toml", program, *whole)
            bare = ("run", "--quiet", "--no-profile", program, *whole)
            found["seconds_in_turn"] = [seconds(paceline(place, *one)) for one in (bare, used, used, bare)]
    return found


def paceline(place: str, *arguments: str) -> Any:
    begun = time.monotonic()
    command = [sys.executable, "-m", "paceline", *arguments]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False, timeout=140)
    done.seconds = time.monotonic() - begun  # type: ignore[attr-defined]
    return done


def seconds(done: Any) -> float | None:
    """Return the training time that the program itself measured, or None."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1])["seconds"] if lines else None


def faults(found: dict[str, Any], wanted: set[str]) -> list[str]:
    if found["code"] or found["result"] is None:
        return [f"tune ended with {found['code']}: {found['errors'][-300:]}"]
    kept = [trial["remedy"] for trial in found["result"]["trials"] if trial["status"] == "kept"]
    if not wanted & set(kept):
        return [f"none of {sorted(wanted)} was kept, but {kept}"]
    first, used, again, last = found.get("seconds_in_turn") or (None,) * 4
    if None in (first, used, again, last):
        return ["a whole run told no time"]
    found["true_speedup"] = (first + last) / (used + again)
    return [] if found["true_speedup"] > 1.02 else [f"the recipe makes the whole run {found['true_speedup']:.2f} times"]
