"""RUN007: a debug setting that slows training down is on."""

from __future__ import annotations

from collections.abc import Sequence, Set

from paceline.explain.analysis.run_analysis import RankAnalysis, RunAnalysis
from paceline.explain.model import Confidence, Evidence, Finding, Gain, Remedy, Severity
from paceline.explain.rules import Rule

# Measured with torch 2.13 on one CPU core: 1.14x and 1.2x for large layers, 2.0x for a small transformer, 6.6x for
# layers of 64 units. The gain depends on the size of the operators, so the upper end is not the largest of these.
_ANOMALY_GAIN = Gain(low=1.1, high=6.6, basis="assumed")

PAGE = """
## What it means

A debug setting of torch or CUDA is on in every step, or in a part of it. Debug settings find errors, and slow training
down while they are on:

- Anomaly detection (`torch.autograd.set_detect_anomaly(True)`) stores a stack trace for each forward operation, and
  looks for NaN after each backward operation.
- `CUDA_LAUNCH_BLOCKING=1` makes the CPU wait for the end of each GPU kernel.
- `TORCH_DISTRIBUTED_DEBUG=DETAIL` compares the arguments of each collective between the ranks.
- Deterministic algorithms (`torch.use_deterministic_algorithms(True)`) replace some fast kernels with slower ones.

## How it is detected

Paceline reads the settings themselves while the program trains: about once per second, and once at the end. If only
deterministic algorithms are on, the finding is an information, because many programs use them on purpose.

The expected gain of turning anomaly detection off is assumed from measurements of five small models on a CPU. The gain
of the other settings is not known before `paceline tune` measures it.

## What helps

- `debug.anomaly_detection`: turn anomaly detection off, and turn it on again to find the cause of a NaN.
- `debug.launch_blocking`: do not set `CUDA_LAUNCH_BLOCKING`.
- `debug.distributed_debug`: do not set `TORCH_DISTRIBUTED_DEBUG=DETAIL`.
- `debug.deterministic_algorithms`: allow algorithms whose results are rounded differently from run to run.
"""

_WHAT = {
    "anomaly_detection": "anomaly detection of autograd is on",
    "launch_blocking": "CUDA_LAUNCH_BLOCKING makes the CPU wait for each GPU kernel",
    "distributed_debug": "TORCH_DISTRIBUTED_DEBUG=DETAIL compares the arguments of each collective",
    "deterministic_algorithms": "deterministic algorithms are on",
}
_REMEDIES = {
    "anomaly_detection": Remedy(
        id="debug.anomaly_detection",
        safety="exact",
        change="remove torch.autograd.set_detect_anomaly(True) and detect_anomaly()",
        gain=_ANOMALY_GAIN,
    ),
    "launch_blocking": Remedy(
        id="debug.launch_blocking", safety="exact", change="unset CUDA_LAUNCH_BLOCKING", gain=None
    ),
    "distributed_debug": Remedy(
        id="debug.distributed_debug", safety="exact", change="unset TORCH_DISTRIBUTED_DEBUG", gain=None
    ),
    "deterministic_algorithms": Remedy(
        id="debug.deterministic_algorithms",
        safety="numeric",
        change="torch.use_deterministic_algorithms(False)",
        gain=None,
    ),
}


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding RUN007, or None if it does not apply."""
    seen = {rank.record.rank: _settings(analysis, rank) for rank in analysis.ranks}
    names = [name for name in _WHAT if any(name in on for on in seen.values())]
    if not names:
        return None
    anomaly = "anomaly_detection" in names
    severity: Severity = "info" if names == ["deterministic_algorithms"] else "warning"
    confidence: Confidence = "medium" if anomaly else "high"  # the setting is certainly on, but its gain is assumed
    return Finding(
        code="RUN007",
        name="debug-mode-on",
        severity=severity,
        confidence=confidence,
        time_share=None,
        gain=_ANOMALY_GAIN if anomaly else None,
        ranks=[rank for rank, on in seen.items() if on],
        evidence=[_evidence(name, list(seen.values())) for name in names],
        remedies=[_REMEDIES[name] for name in names],
        summary=f"{_WHAT[names[0]]}, which makes training slower",
    )


def _settings(analysis: RunAnalysis, rank: RankAnalysis) -> set[str]:
    """Return the debug settings of a rank that were on, except settings that cost nothing in this run."""
    free = {"launch_blocking", "deterministic_algorithms"} if analysis.on_cpu else set()
    free |= {"distributed_debug"} if len(analysis.ranks) == 1 else set()
    return set(rank.record.meta.get("debug", ())) - free


def _evidence(name: str, ranks: Sequence[Set[str]]) -> Evidence:
    count = sum(name in on for on in ranks)
    return Evidence(text=f"{_WHAT[name]} in {count} of {len(ranks)} ranks", value=float(count), unit="ranks")


RULE = Rule(code="RUN007", name="debug-mode-on", page=PAGE, check=check)
