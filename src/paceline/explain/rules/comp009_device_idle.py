"""COMP009: the GPU is idle in a capture, and the capture does not show why."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core import units
from paceline.explain.analysis import captures as spans
from paceline.explain.model import Evidence, Finding
from paceline.explain.rules import Rule, comp002_launch_bound, comp003_sync_stall, data001_loader_serial
from paceline.explain.rules import data004_loader_underprovisioned as data004
from paceline.traces.analyze.ranks import RankTrace, Traces

_LEAST = 0.15  # share of the captured time
_CRITICAL = 0.5
# rules that report a known cause of idle time
_TOLD_BY = (comp002_launch_bound, comp003_sync_stall, data001_loader_serial, data004)
_NAMED = {
    "before": "before the first and after the last GPU event",
    "loader": "while a batch is fetched",
    "synchronising": "while the host waits in a synchronizing call",
    "host": "because the host has not launched the next kernel",
    "device": "although the next kernel is launched already",
    "unknown": "before work whose launch is not in the capture",
}
_CAUSE_OF = {"COMP002": "host", "COMP003": "synchronising", "DATA001": "loader", "DATA004": "loader"}

PAGE = """
## What it means

In a profiler capture, the GPU does nothing for a large part of the time, and the capture does not show the cause. The
program may compute on the CPU, read files, or wait for another process. The finding says when the GPU is idle, and
what to record so that the cause can be found.

## How it is detected

Paceline reports `device-idle` only for profiler captures. The captured time begins with the first event of the capture,
on the CPU or the GPU, and ends with the last event. The idle time is the captured time in which no GPU event runs.
Idle time that another finding explains is not counted: fetching batches (DATA001, DATA004), synchronizing calls
(COMP003), or launching many short kernels (COMP002). Paceline reports the finding if the rest is at least 15% of the
captured time.

Paceline does not state an expected gain, because the cause is unknown.

## What helps

Record more, and find the cause:

- If the GPU is idle before the first GPU event, capture steps in the middle of training. With
  `torch.profiler.schedule(wait=2, warmup=2, active=4)`, the profiler skips the start.
- If the host has not launched the next kernel, record the Python code too: `torch.profiler.profile(with_stack=True)`.
- `paceline run train.py` measures where the time of the training process goes, also in the loader and in Python code.
"""


def check_traces(traces: Traces) -> Finding | None:
    """Return finding COMP009 for captures: the GPU is idle, and no other finding gives the reason."""
    told = {found.code for rule in _TOLD_BY if (found := rule.check_traces(traces)) is not None}
    explained = {_CAUSE_OF[code] for code in told}
    ranks = [(rank, _unexplained(rank, explained)) for rank in spans.timed(traces)]
    found = max(ranks, key=lambda pair: _share(*pair), default=None)
    if found is None or _share(*found) < _LEAST:
        return None
    rank, parts = found
    share = _share(rank, parts)
    return Finding(
        code="COMP009",
        name="device-idle",
        severity="critical" if share >= _CRITICAL else "warning",
        confidence="high",
        time_share=share,
        gain=None,
        ranks=spans.numbers([rank]),
        evidence=_evidence(rank, parts),
        remedies=[],
        summary=f"the GPU is idle during {units.percent(share)} of the captured time, and the capture does not show "
        f"why; most of the idle time is {_NAMED[max(parts, key=lambda name: parts[name])]}",
    )


def _captured_ns(rank: RankTrace) -> int:
    return rank.breakdown.span_ns + rank.outside_ns


def _unexplained(rank: RankTrace, explained: set[str]) -> dict[str, int]:
    """Return the idle time of a rank in nanoseconds by cause, without causes that other findings report."""
    parts = {"before": rank.outside_ns, **rank.idle.causes_ns}
    return {name: spent for name, spent in parts.items() if name not in explained}


def _share(rank: RankTrace, parts: dict[str, int]) -> float:
    return sum(parts.values()) / _captured_ns(rank)


def _evidence(rank: RankTrace, parts: dict[str, int]) -> Sequence[Evidence]:
    captured = _captured_ns(rank)
    of = f"of {units.seconds(captured / 1e9)} captured on {rank.title} ({rank.breakdown.events:,} GPU events)"
    ordered = sorted(parts.items(), key=lambda part: -part[1])
    return [
        Evidence(
            text=f"the GPU is idle {_NAMED[name]} during {units.percent(spent / captured)} {of}",
            value=spent / captured,
            unit="share of the captured time",
        )
        for name, spent in ordered[:3]
        if spent > 0.01 * captured
    ]


RULE = Rule(code="COMP009", name="device-idle", page=PAGE, check=None, check_traces=check_traces)
