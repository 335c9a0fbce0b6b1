"""The confidence of findings about time, if other programs used the CPU during the run.

A step that waits for a CPU core looks slow in the phase in which it waits. Therefore the confidence is lower if other
programs or a CPU quota kept the training thread or the loader workers from a core.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from paceline.core import units
from paceline.explain.analysis.breakdown import cpu_wait_share
from paceline.explain.analysis.run_analysis import RunAnalysis
from paceline.explain.model import Confidence, Evidence, Finding

_OTHERS = 0.15  # a run is disturbed if other programs use more than this share of the cores
_THROTTLED = 0.05  # a run is disturbed if a CPU quota stops the program for this share of the time
_NOTICEABLE = 0.05  # waiting for a core counts from this share of the time on
_MOST = 0.95  # largest share of step time that other programs may have cost
_EXPLAINS = 0.5  # waiting for a core explains a finding if it takes this share of the finding's time
_LOWER: Mapping[Confidence, Confidence] = {"high": "medium", "medium": "low", "low": "low"}
# Findings that do not depend on times, and findings about the machine.
_UNDISTURBED = ("CONV", "MEM", "HOST", "GPU", "RUN007", "COMP001")


def others_take_cores(analysis: RunAnalysis) -> bool:
    """Return whether other programs or a CPU quota took cores. Without readings of the host, the result is True."""
    host = analysis.host
    known = host.allowed_cores is not None and host.own_cores is not None
    return not known or host.others_share > _OTHERS or (host.throttled or 0.0) >= _THROTTLED


def taken_by_others(analysis: RunAnalysis) -> float:
    """Return the share of step time that other programs may have cost, or 0 if they took no cores.

    Ranks wait for each other, so the shares of all ranks are added.
    """
    if not others_take_cores(analysis):
        return 0.0
    return min(_MOST, sum(cpu_wait_share(rank.record) for rank in analysis.ranks))


def with_confidence(findings: Sequence[Finding], analysis: RunAnalysis) -> list[Finding]:
    """Return the findings with lower confidence, and an explanation, if other programs took the CPU.

    The confidence is low if waiting for a core may explain at least half of the time that a finding costs.
    """
    if not others_take_cores(analysis):
        return list(findings)
    workers = [r.loader.runnable for r in analysis.ranks if r.loader is not None and r.loader.makers]
    of_loaders = max([analysis.cpu_wait_share, *workers])
    return [_lowered(f, of_loaders if f.code.startswith("DATA") else analysis.cpu_wait_share) for f in findings]


def _lowered(finding: Finding, kept: float) -> Finding:
    if kept < _NOTICEABLE or finding.code.startswith(_UNDISTURBED):
        return finding
    explained = finding.time_share is not None and kept >= _EXPLAINS * finding.time_share
    text = (
        f"other programs may have changed this: {'loading' if finding.code.startswith('DATA') else 'training'} waited "
        f"for a CPU core during {units.percent(kept)} of its time"
    )
    return replace(
        finding,
        confidence="low" if explained else _LOWER[finding.confidence],
        evidence=[*finding.evidence, Evidence(text=text, value=kept, unit="share of time")],
    )
