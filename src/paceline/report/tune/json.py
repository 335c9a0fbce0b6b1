"""The result of tuning as JSON, schema ``paceline.tune/1``. New keys can be added, but keys never change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from paceline.core.statistics import Interval
from paceline.explain.model import Diagnosis, Gain
from paceline.explain.next_step import NextStep
from paceline.report.tune.words import not_watched
from paceline.tune.comparison.model import StepTimes
from paceline.tune.equivalence.outputs import Check
from paceline.tune.search.batch_size import BatchSize, BatchStudy
from paceline.tune.search.quality import Quality
from paceline.tune.search.result import OUTCOMES, Trial, TuneResult, untried_remedies
from paceline.tune.trials.gpus import GpuRange

SCHEMA = "paceline.tune/1"

Json = dict[str, Any]


def tuned_json(tuned: TuneResult, recipe_file: str | None, steps: Sequence[NextStep] = ()) -> Json:
    """Return the result of tuning as JSON values.

    Args:
        tuned: The result of tuning.
        recipe_file: The path of the recipe, proven or not; None if none was written.
        steps: What to do next, the most important step first.
    """
    return {
        "schema": SCHEMA,
        "command": list(tuned.command),
        "goal": tuned.goal,
        "wall_s": tuned.wall_s,
        "stopped": tuned.stopped,
        "process_scatter": tuned.scatter,
        "processes_compared": tuned.compared,
        "baseline": _run(tuned.before),
        "after": _run(tuned.after) if tuned.after is not None else None,
        "unavailable": {"after": why} if (why := not_watched(tuned)) is not None else {},
        "trials": [_trial(trial) for trial in tuned.trials],
        "by_hand": [
            {"remedy": one.remedy.id, "finding": one.finding, "change": one.remedy.change, "reason": one.why}
            for one in untried_remedies(tuned)
        ],
        "best": {
            "recipe": tuned.best,
            "speedup": _speedup(tuned.speedup),
            "memory_saving": _speedup(tuned.saving),
            "step_s": _step_times(tuned.step_times),
            "in_turn": tuned.in_turn,
            "checks": [_check(check) for check in tuned.checks],
        },
        "unproven": _unproven(tuned.unproven, recipe_file),
        "recipe_file": recipe_file if tuned.best else None,
        "whole_run": _whole(tuned),
        "last_failure": tuned.last_failure,
        "next": [step.record for step in steps],
        "price_per_hour_usd": tuned.price_per_hour,
        "batch": _batch(tuned.batch) if tuned.batch is not None else None,
        "quality": _quality(tuned.quality) if tuned.quality is not None else None,
    }


def _unproven(trial: Trial | None, recipe_file: str | None) -> Json | None:
    if trial is None:
        return None
    checks = [_check(check) for check in trial.checks]
    return {
        "recipe": trial.recipe,
        "recipe_file": recipe_file,
        "safety": trial.safety,
        "speedup": _speedup(trial.speedup),
        "checks": checks,
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
        "predicted_by_findings": _gain(trial.predicted_by_findings),
        "speedup": _speedup(trial.speedup),
        "memory_saving": _speedup(trial.saving),
        "as_predicted": trial.as_predicted,
        "cpu_ratio": trial.cpu_ratio,
        "rounds": trial.rounds,
        "set_aside": trial.set_aside,
        "far_off": trial.far_off,
        "gpu": _gpu(trial.gpu),
        "seconds": trial.seconds,
        "status": trial.status,
        "outcome": OUTCOMES[trial.status],
        "reason": trial.reason,
        "checks": [_check(check) for check in trial.checks],
    }


def _gpu(gpu: GpuRange | None) -> Json | None:
    if gpu is None:
        return None
    return {
        "sm_clock_mhz": {"low": gpu.sm_clock_low_mhz, "high": gpu.sm_clock_high_mhz},
        "temperature_c": gpu.temperature_c,
        "throttle_reasons": list(gpu.throttled),
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


def _step_times(times: StepTimes | None) -> Json | None:
    return None if times is None else {"baseline": times.baseline_s, "with_recipe": times.candidate_s}


def _whole(tuned: TuneResult) -> Json | None:
    one = tuned.whole_run
    if one is None:
        return None
    whole = tuned.whole_speedup
    return {
        "run_id": one.run_id,
        "wall_s": one.wall_s,
        "steps_s": one.steps_s,
        "speedup": None if whole is None else _finite(whole.value),
        "speedup_low": None if whole is None else _finite(whole.low),
        "speedup_high": None if whole is None else _finite(whole.high),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _check(check: Check) -> Json:
    return {"name": check.name, "passed": check.passed, "text": check.text}


def _batch(found: BatchStudy) -> Json:
    return {
        "noise_scale": _noise(found.noise),
        "measured": found.why,
        "learning_rate_rule": found.rule,
        "largest_that_ran": found.largest.samples if found.largest else None,
        "fastest_per_sample": found.fastest.samples if found.fastest else None,
        "soonest_to_a_loss": found.soonest.samples if found.soonest else None,
        "sizes": [_size(size) for size in found.sizes],
    }


def _noise(interval: Interval | None) -> Json | None:
    if interval is None:
        return None
    ends = {"value": interval.value, "low": interval.low, "high": interval.high}
    return {**{name: _finite(value) for name, value in ends.items()}, "windows": interval.count}


def _size(size: BatchSize) -> Json:
    return {
        "batch_size": size.samples,
        "step_s": size.step_s,
        "samples_per_s": size.samples_per_s,
        "peak_bytes": size.peak_bytes,
        "learning_rate_factor": size.learning_rate,
        "progress_per_step": size.progress,
        "time_to_loss_s": size.loss_s,
        "why_not": size.why_not,
    }


def _quality(found: Quality) -> Json:
    return {
        "target_loss": found.target,
        "passed": found.passed,
        "seeds": [
            {"seed": one.seed, "baseline_s": one.baseline_s, "candidate_s": one.candidate_s} for one in found.seeds
        ],
        "speedup": _speedup(found.speedup),
    }
