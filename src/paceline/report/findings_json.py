"""A finding as JSON values, in the same form for the results of `run`, `report` and `trace`."""

from __future__ import annotations

from typing import Any

from paceline.explain.model import Finding, Gain, Remedy

Json = dict[str, Any]


def _gain(gain: Gain | None) -> Json | None:
    if gain is None:
        return None
    return {"low": gain.low, "high": gain.high, "basis": gain.basis, "confidence": gain.confidence}


def _remedy(remedy: Remedy) -> Json:
    return {
        "id": remedy.id,
        "safety": remedy.safety,
        "change": remedy.change,
        "gain": _gain(remedy.gain),
    }


def finding_json(finding: Finding) -> Json:
    """Return a finding as JSON values."""
    return {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity,
        "confidence": finding.confidence,
        "summary": finding.summary,
        "time_share": finding.time_share,
        "gain": _gain(finding.gain),
        "ranks": list(finding.ranks),
        "evidence": [{"text": one.text, "value": one.value, "unit": one.unit} for one in finding.evidence],
        "remedies": [_remedy(one) for one in finding.remedies],
    }
