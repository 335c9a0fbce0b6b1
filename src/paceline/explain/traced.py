"""What do profiler captures show of what holds a run back? The same findings as of a live run, the verdict first."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain.model import Finding
from paceline.explain.rules import all_rules
from paceline.explain.spans import timed
from paceline.explain.verdict import ordered
from paceline.traces.analyze.ranks import Traces


def verdict_of(traces: Traces, findings: Sequence[Finding]) -> str | None:
    """Return the name of what holds the run back most, ``balanced`` where nothing does; None without GPU events."""
    if not timed(traces) and not findings:
        return None
    return findings[0].name if findings else "balanced"


def findings_in(traces: Traces) -> list[Finding]:
    """Decide every finding that captures can show."""
    checks = [rule.check_traces for rule in all_rules() if rule.check_traces is not None]
    return ordered([found for check in checks if (found := check(traces)) is not None])
