"""The result of tuning as JSON, schema ``paceline.tune/1``: a contract, keys may be added, never changed."""

from __future__ import annotations

import math
from typing import Any

from paceline.explain.model import Diagnosis, Gain, Interval
from paceline.improve.model import Check, Trial, Tuned

SCHEMA = "paceline.tune/1"

Json = dict[str, Any]


def tuned_json(tuned: Tuned, recipe_file: str | None) -> Json:
    """Return a result as JSON values.

    Args:
        tuned: What tuning found.
        recipe_file: Where the recipe was written; None when nothing was kept.
    """
    return {
        "schema": SCHEMA,
        "command": list(tuned.command),
        "wall_s": tuned.wall_s,
        "stopped": tuned.stopped,
        "process_scatter": tuned.scatter,
        "baseline": _run(tuned.before),
        "after": _run(tuned.after) if tuned.after is not None else None,
        "trials": [_trial(trial) for trial in tuned.trials],
        "best": {
            "recipe": tuned.best,
            "speedup": _speedup(tuned.speedup),
            "checks": [_check(check) for check in tuned.checks],
        },
        "recipe_file": recipe_file,
    }


def _run(diagnosis: Diagnosis) -> Json:
    return {
        "verdict": diagnosis.verdict,
        "median_s": diagnosis.step_s.value if diagnosis.step_s is not None else None,
        "samples_per_s": diagnosis.samples_per_s,
        "phases": {name: {"share": share} for name, share in diagnosis.shares.items()},
    }


def _trial(trial: Trial) -> Json:
    return {
        "id": trial.id,
        "remedy": trial.remedy,
        "safety": trial.safety,
        "recipe": trial.recipe,
        "predicted": _gain(trial.predicted),
        "speedup": _speedup(trial.speedup),
        "as_predicted": trial.as_predicted,
        "cpu_ratio": trial.cpu_ratio,
        "rounds": trial.rounds,
        "set_aside": trial.set_aside,
        "seconds": trial.seconds,
        "status": trial.status,
        "reason": trial.reason,
        "checks": [_check(check) for check in trial.checks],
    }


def _gain(gain: Gain | None) -> Json | None:
    return None if gain is None else {"low": gain.low, "high": gain.high}


def _speedup(interval: Interval | None) -> Json | None:
    if interval is None:
        return None
    return {
        "median": _finite(interval.value),
        "low": _finite(interval.low),
        "high": _finite(interval.high),
        "pairs": interval.count,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _check(check: Check) -> Json:
    return {"name": check.name, "passed": check.passed, "text": check.text}
