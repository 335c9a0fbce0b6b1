"""A comparison as one JSON object for programs, schema ``paceline.compare/1``.

New keys can be added, but keys never change. Units are in the names (``_s``, ``_bytes``); ratios are after / before.
"""

from __future__ import annotations

from typing import Any

from paceline import __version__
from paceline.core.statistics import Interval
from paceline.explain.comparison import METHOD, Comparison, LossChange, PhaseChange, WholeRun
from paceline.explain.model import Diagnosis, Finding
from paceline.explain.next_step import after_comparison
from paceline.report.words import finite, steps_of

SCHEMA = "paceline.compare/1"

Json = dict[str, Any]


def comparison_to_json(comparison: Comparison) -> Json:
    """Return the JSON object of a comparison. It contains no NaN, so `json.dumps(..., allow_nan=False)` accepts it."""
    return {
        "schema": SCHEMA,
        "version": __version__,
        "outcome": comparison.outcome,
        "regression": comparison.outcome == "regression",
        "text": comparison.text,
        "tolerance": comparison.tolerance,
        "basis": comparison.basis,
        "time_ratio": _interval(comparison.ratio),
        "time_before_s": _interval(comparison.time_before_s),
        "time_after_s": _interval(comparison.time_after_s),
        "whole_run_ratio": finite(comparison.whole_ratio),
        "before": _side(comparison.before, comparison.whole_before),
        "after": _side(comparison.after, comparison.whole_after),
        "main_phase": comparison.main.phase if comparison.main is not None else None,
        "phases": {one.phase: _phase(one) for one in comparison.phases},
        "loss": _loss(comparison.loss),
        "findings_new": [_finding(one) for one in comparison.new],
        "findings_gone": [_finding(one) for one in comparison.gone],
        "differences": [{"name": d.name, "before": d.before, "after": d.after} for d in comparison.differences],
        "notes": list(comparison.notes),
        "method": METHOD,
        "next": [after_comparison(comparison).record],
    }


def _interval(interval: Interval | None) -> Json | None:
    if interval is None:
        return None
    return {
        "value": finite(interval.value),
        "low": finite(interval.low),
        "high": finite(interval.high),
        "count": interval.count,
    }


def _side(one: Diagnosis, whole: WholeRun | None) -> Json:
    return {
        "run_id": one.run_id,
        "command": one.command,
        "exit_code": one.exit_code,
        "ended": one.ended,
        "ranks": one.world,
        "steps": steps_of(one.ranks),
        "wall_s": finite(one.wall_s),
        "outside_steps_s": whole.outside_s if whole is not None else None,
        "median_s": one.step_s.value if one.step_s is not None else None,
        "samples_per_s": finite(one.samples_per_s),
        "batch_size": finite(one.batch_size),
        "peak_rss_bytes": one.memory.get("peak_rss_bytes"),
        "peak_device_bytes": one.memory.get("peak_device_bytes"),
        "verdict": one.verdict,
    }


def _phase(one: PhaseChange) -> Json:
    return {
        "before_s": finite(one.before_s),
        "after_s": finite(one.after_s),
        "change_s": _interval(one.change_s),
        "explains": finite(one.explains),
        "certain": one.certain,
    }


def _loss(loss: LossChange | None) -> Json | None:
    if loss is None:
        return None
    return {
        "step": loss.step,
        "before": _interval(loss.before),
        "after": _interval(loss.after),
        "steps_alike": loss.steps_alike,
        "steps_common": loss.steps_common,
    }


def _finding(finding: Finding) -> Json:
    return {"code": finding.code, "name": finding.name, "severity": finding.severity, "summary": finding.summary}
