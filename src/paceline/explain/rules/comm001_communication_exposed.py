"""COMM001: communication between ranks is not hidden behind computing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.core import units
from paceline.core.remedies import Safety
from paceline.explain import words
from paceline.explain.analysis import captures as spans
from paceline.explain.analysis.gains import at_most
from paceline.explain.analysis.ranks import Parallelism, parallelism, repeated_exchanges, straggler
from paceline.explain.analysis.run_analysis import RunAnalysis
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule
from paceline.traces.analyze.path_summary import COMMUNICATION
from paceline.traces.analyze.ranks import Traces

_LEAST = 0.08
_LEAST_GAIN = 1.02  # least gain of a replayed capture without communication

PAGE = """
## What it means

The ranks exchange gradients or parameters, and no rank computes while the ranks communicate. All ranks wait
about equally long for the communication.

## How it is detected

Paceline reports `communication-exposed` if communication takes at least 8% of step time on every rank, and if all ranks
compute about equally long. Communication time is the time in collective operations, plus the time in which the
forward and backward pass of a distributed run are blocked. If one rank makes the other ranks wait, Paceline reports
COMM002 instead.

In profiler captures, Paceline reports `communication-exposed` if communication during which no compute kernel runs
takes at least 8% of the time between the first and the last GPU event. The time in which ranks wait for the slowest
rank is not included. Paceline replays the capture without communication. If the replay is less than 1.02x faster,
because the GPU then waits for the host, Paceline does not report the finding. The expected gain is at most that of the
replay.

## What helps

- `ddp.bucket_cap_mb`: with another gradient bucket size, more of the communication can overlap with computing.
- `ddp.comm_hook`: a communication hook that compresses gradients to 16 bits halves the bytes that ranks exchange.
- `batch.accumulate`: with gradient accumulation, ranks exchange gradients fewer times for the same number of samples.
  The effective batch size grows.
- `fsdp.keep_gathered`: with parameters sharded by FSDP, gather them once per step instead of twice.
- `pipeline.micro_batches`: in a pipeline, more micro-batches make stages wait less for one another.
- `layout.shard`: another parallel layout can need less communication. `paceline plan` compares parallel layouts.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding COMM001, or None if it does not apply."""
    if len(analysis.ranks) < 2 or straggler(analysis) is not None or repeated_exchanges(analysis) is not None:
        return None
    shares = [rank.breakdown.shares["communication"] for rank in analysis.ranks]
    share = min(shares)
    if share < 0.08:
        return None
    text = (
        f"communication takes {units.percent(min(shares))} to {units.percent(max(shares))} of step time on the "
        f"{len(shares)} ranks"
    )
    return Finding(
        code="COMM001",
        name="communication-exposed",
        severity="critical" if share >= 0.25 else "warning",
        confidence="medium",
        time_share=share,
        gain=at_most(share),
        ranks=[r.record.rank for r in analysis.ranks],
        evidence=[
            Evidence(text=text, value=share, unit="share of step time"),
            words.step_time(analysis.first.breakdown.step_s),
        ],
        remedies=_remedies(parallelism(analysis.first), share),
        summary=f"ranks wait for communication during {units.percent(share)} of the time",
    )


_GATHERED = "keep the parameters gathered after the forward pass: fully_shard(module, reshard_after_forward=False)"
_FITTING: Mapping[Parallelism, Sequence[tuple[str, Safety, str, float]]] = {
    "ddp": [
        ("ddp.comm_hook", "numeric", "compress gradients to 16 bits with a DDP communication hook", 0.5),
        ("ddp.bucket_cap_mb", "numeric", "try another gradient bucket size (bucket_cap_mb)", 1.0),
        ("batch.accumulate", "semantic", "accumulate gradients over more micro-steps", 1.0),
    ],
    "fsdp": [
        ("fsdp.keep_gathered", "exact", _GATHERED, 0.5),
        ("batch.accumulate", "semantic", "accumulate gradients over more micro-steps", 1.0),
    ],
    "pipeline": [("pipeline.micro_batches", "numeric", "use more micro-batches (n_microbatches)", 1.0)],
    "other": [("batch.accumulate", "semantic", "exchange data between ranks less often", 1.0)],
}
"""For each kind of communication: remedy, safety class, change, and the largest part of communication it can save."""


def _remedies(kind: Parallelism, share: float) -> list[Remedy]:
    return [
        Remedy(id=one, safety=safety, change=change, gain=at_most(part * share))
        for one, safety, change, part in _FITTING[kind]
    ]


def check_traces(traces: Traces) -> Finding | None:
    """Return finding COMM001 for captures: exposed communication, without the time spent waiting for a straggler."""
    ranks = [rank for rank in spans.timed(traces) if rank.breakdown.communication_ns]
    if not ranks:
        return None
    exposed = [spans.share(rank, lambda one: one.breakdown.exposed_communication_ns) for rank in ranks]
    share = min(exposed) if not traces.stragglers else max(0.0, min(exposed) - spans.waiting_share(traces))
    gain = spans.gain_without(ranks, COMMUNICATION, share)
    if share < _LEAST or gain.high < _LEAST_GAIN:
        return None
    compress = Remedy(
        id="ddp.comm_hook",
        safety="numeric",
        change="compress gradients to 16 bits with a DDP communication hook",
        gain=spans.gain_without(ranks, COMMUNICATION, 0.5 * share),
    )
    buckets = Remedy(
        id="ddp.bucket_cap_mb",
        safety="numeric",
        change="try another gradient bucket size (bucket_cap_mb)",
        gain=gain,
    )
    return Finding(
        code="COMM001",
        name="communication-exposed",
        severity="critical" if share >= 0.25 else "warning",
        confidence="high" if len(ranks) > 1 else "medium",
        time_share=share,
        gain=gain,
        ranks=spans.numbers(ranks),
        evidence=[
            spans.cited(rank, one, "communication that does not overlap with computing")
            for rank, one in zip(ranks, exposed, strict=True)
        ][:8],
        remedies=[compress, buckets],
        summary=f"communication that does not overlap with computing takes {units.percent(share)} of the time",
    )


RULE = Rule(code="COMM001", name="communication-exposed", page=PAGE, check=check, check_traces=check_traces)
