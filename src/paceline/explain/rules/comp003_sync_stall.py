"""COMP003: the host waits for the GPU inside a step."""

from __future__ import annotations

from paceline.core import units
from paceline.explain import words
from paceline.explain.analysis import captures as spans
from paceline.explain.analysis.gains import at_most
from paceline.explain.analysis.loader_model import WORTH
from paceline.explain.analysis.run_analysis import RankAnalysis, RunAnalysis
from paceline.explain.model import Evidence, Finding, Gain, Remedy
from paceline.explain.rules import Rule
from paceline.record.run import JsonObject
from paceline.traces.analyze.path_summary import WAITS
from paceline.traces.analyze.ranks import Traces

_SLOTS = ("forward", "mid", "backward", "other", "gap", "optimizer")
_LEAST_SAMPLES = 8
_NOT_BY_WAITING = ("data_wait", "transfer", "checkpoint")

PAGE = """
## What it means

The program reads a value from the GPU in the middle of a step, by `.item()`, `.cpu()`, `.tolist()`, `.numpy()`,
`float(tensor)` or printing a tensor, or it calls `torch.cuda.synchronize()`. The host waits until the GPU has finished
all queued work. Afterwards, the GPU is idle until the host has launched new work.

## How it is detected

Paceline takes 50 stack samples of the training thread per second. Paceline reports `sync-stall` if the innermost line
is a call that reads a value from the GPU in at least eight samples, and in at least 5% of the samples between the first
and the last step.

If the host waits while the GPU computes, no time is lost. The lost time is therefore at most the time in which the GPU
is idle (1 - utilization, read with NVML), without the idle time for data loading, copies and checkpoints. If the GPU is
idle during less than 5% of the time, apart from data loading, copies and checkpoints, Paceline does not report
`sync-stall`. The expected gain is assumed: at most all of the idle time, because a GPU is also idle for other
reasons. If the utilization cannot be read, the finding has the severity "info".

In profiler captures, Paceline reports `sync-stall` if the GPU is idle during at least 5% of the time while the host is
in a call such as `cudaStreamSynchronize`.

The page [devices](../reference/devices.md) lists the hardware on which the finding `sync-stall` was tested.

## What helps

- `sync.less_often`: add values up on the GPU (`total += loss.detach()`), and read the sum every n-th step.
- `sync.non_blocking`: copy the value into pinned memory with `.to("cpu", non_blocking=True)`, and read the copy one
  step later.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding COMP003, or None if it does not apply."""
    if analysis.on_cpu:
        return None
    rank = max(analysis.ranks, key=_share)
    share, lines = _share(rank), _lines(rank)
    if share < WORTH or sum(line["count"] for line in lines) < _LEAST_SAMPLES:
        return None
    idle = _idle(rank)
    if idle is not None and idle < WORTH:
        return None
    lost = None if idle is None else min(share, idle)
    gain = None if lost is None else at_most(lost)
    return Finding(
        code="COMP003",
        name="sync-stall",
        severity="info" if gain is None else "warning",
        confidence="low" if gain is None else "medium",
        time_share=lost,
        gain=gain,
        ranks=[r.record.rank for r in analysis.ranks if _share(r) >= WORTH],
        evidence=_evidence(rank, share, idle, lines),
        remedies=_remedies(lines[0], gain),
        summary=f"the host waits for the GPU during {units.percent(share)} of the time, mostly in the function "
        f"{lines[0]['function']}",
    )


def _lines(rank: RankAnalysis) -> list[JsonObject]:
    """Return the source lines that wait for the GPU, with their numbers of stack samples, most samples first."""
    found: dict[str, dict[str, object]] = {}
    counts: dict[str, int] = {}
    for entry in rank.record.summary.get("syncs") or ():
        if entry["slot"] in _SLOTS:
            name = str(entry["function"])
            counts[name] = counts.get(name, 0) + int(entry["count"])
            found[name] = {"function": name, "text": entry["text"], "count": counts[name]}
    return sorted(found.values(), key=lambda line: -counts[str(line["function"])])


def _share(rank: RankAnalysis) -> float:
    """Return the share of a rank's stack samples after start-up in which the training thread waits for the GPU."""
    samples = rank.record.summary.get("samples") or ()
    total = sum(int(s["count"]) for s in samples if s["slot"] != "startup")
    return sum(int(line["count"]) for line in _lines(rank)) / total if total else 0.0


def _idle(rank: RankAnalysis) -> float | None:
    """Return the share of time in which the GPU is idle, without time spent on data and copies, or None if unknown."""
    if rank.gpu is None or rank.gpu.utilization is None:
        return None
    return max(0.0, 1 - rank.gpu.utilization - sum(rank.breakdown.shares[name] for name in _NOT_BY_WAITING))


def _evidence(rank: RankAnalysis, share: float, idle: float | None, lines: list[JsonObject]) -> list[Evidence]:
    total = sum(int(line["count"]) for line in lines)
    found = [
        Evidence(
            text=f"the training thread waited for the GPU in {units.percent(share)} of its {total} stack samples",
            value=share,
            unit=words.SHARE_OF_SAMPLES,
        )
    ]
    for line in lines[:3]:
        text = (
            f"{line['count']} stack samples that wait for the GPU are in the function {line['function']}: "
            f"`{line['text']}`"
        )
        found.append(Evidence(text=text, value=float(line["count"]), unit="samples"))
    if idle is not None and rank.gpu is not None:
        text = (
            f"GPU {rank.gpu.index} is idle during {units.percent(idle)} of the time, not counting idle time for data "
            f"and copies"
        )
        text += f" ({units.count(rank.gpu.readings, 'reading')})"
        found.append(Evidence(text=text, value=idle, unit="share of time"))
    return found


def _remedies(line: JsonObject, gain: Gain | None) -> list[Remedy]:
    return [
        Remedy(
            id="sync.less_often",
            safety="exact",
            change=f"in {line['function']}, add values up on the GPU and read the sum every n-th step",
            gain=gain,
        ),
        Remedy(
            id="sync.non_blocking",
            safety="exact",
            change="copy the value into pinned memory with non_blocking=True, and read the copy one step later",
            gain=gain,
        ),
    ]


def check_traces(traces: Traces) -> Finding | None:
    """Return finding COMP003 for captures: the GPU is idle while the host waits in a synchronizing call."""
    found = spans.worst(traces, lambda one: one.idle.synchronising_ns)
    if found is None or found[1] < WORTH:
        return None
    rank, share = found
    gain = spans.gain_without([rank], WAITS, share)
    less = Remedy(
        id="sync.less_often",
        safety="exact",
        change="add values up on the GPU and read the sum every n-th step",
        gain=gain,
    )
    return Finding(
        code="COMP003",
        name="sync-stall",
        severity="warning",
        confidence="medium",
        time_share=share,
        gain=gain,
        ranks=spans.numbers([rank]),
        evidence=[spans.cited(rank, share, "GPU idle time while the host waits for the GPU")],
        remedies=[less],
        summary=f"the GPU is idle during {units.percent(share)} of the time while the host waits in a synchronizing "
        f"call",
    )


RULE = Rule(code="COMP003", name="sync-stall", page=PAGE, check=check, check_traces=check_traces)
