"""XFER001: do copies to the device hold it up?"""

from __future__ import annotations

from paceline import units
from paceline.explain import spans, words
from paceline.explain.facts import Facts, RankFacts, gain_of_removing
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule
from paceline.explain.supply import WORTH
from paceline.traces.many import Traces
from paceline.traces.model import COPY

_PINNED = 0.1  # of the time of copies, from or to pageable memory: below, memory is pinned already

PAGE = """
## What it means

While a batch is copied to the GPU, the GPU does nothing else, or the host waits for the copy. From ordinary
(pageable) memory the driver must copy twice, and `non_blocking=True` has no effect.

## How it is decided

Copies to the GPU take at least 5 % of step time on the device's clock (on the host's, where the device timed
too few steps): the share from which on waiting is a finding. Whether the loader pins memory is read from its
settings and named, but does not decide. The gain is at most nearly all of it (copies hidden behind computing)
and at least a third (pinned memory that is still waited for saves the driver's own copy); the third is an
estimate that has not been measured. No GPU has been seen by the authors.

## What helps

`loader.pin_memory`: `DataLoader(pin_memory=True)` and `batch.to(device, non_blocking=True)`.
`data.prefetch_device`: copy the next batch on a stream of its own while this one is computed.
`transfer.smaller`: send uint8 and convert on the GPU.
"""


def check(facts: Facts) -> Finding | None:
    """Decide XFER001."""
    share = facts.shares["transfer"]
    if facts.on_cpu or share < WORTH:
        return None
    rank = max(facts.ranks, key=lambda r: r.breakdown.shares["transfer"])
    return Finding(
        code="XFER001",
        name="transfer-blocking",
        severity="critical" if share >= 0.2 else "warning",
        confidence="medium",
        time_share=share,
        gain=gain_of_removing(share, 1 / 3, 0.95),
        ranks=[r.record.rank for r in facts.ranks if r.breakdown.shares["transfer"] >= WORTH],
        evidence=[words.share_of_step(share, "copying to the GPU"), *_pinning(rank)],
        remedies=_remedies(rank, share),
        summary=f"copies to the GPU take {units.percent(share)} of the time",
    )


def _pins(rank: RankFacts) -> bool | None:
    value = rank.loader.settings.get("pin_memory") if rank.loader else None
    return value if isinstance(value, bool) else None


def _pinning(rank: RankFacts) -> list[Evidence]:
    pins = _pins(rank)
    if pins is None:
        return []
    text = f"the loader hands out {'pinned' if pins else 'pageable'} memory (pin_memory={pins}; 1 loader)"
    return [Evidence(text=text, value=float(pins), unit="pinned")]


def _remedies(rank: RankFacts, share: float) -> list[Remedy]:
    return _remedies_for(bool(_pins(rank)), share)


def _remedies_for(pins: bool, share: float) -> list[Remedy]:
    pin = Remedy(
        id="loader.pin_memory",
        safety="exact",
        change="DataLoader(pin_memory=True) and batch.to(device, non_blocking=True)",
        gain=gain_of_removing(share, 1 / 3, 0.95),
    )
    prefetch = Remedy(
        id="data.prefetch_device",
        safety="exact",
        change="copy the next batch on a stream of its own, from pinned memory with non_blocking=True",
        gain=gain_of_removing(share, 0.5, 0.95),
    )
    smaller = Remedy(
        id="transfer.smaller",
        safety="numeric",
        change="send uint8 and convert to floating point on the GPU",
        gain=gain_of_removing(share, 0.0, 0.75),
    )
    return [prefetch, smaller] if pins else [pin, prefetch, smaller]


def check_traces(traces: Traces) -> Finding | None:
    """Decide XFER001 for captures: copies that no kernel runs beside."""
    found = spans.worst(traces, lambda one: one.breakdown.exposed_copy_ns)
    if found is None or found[1] < WORTH:
        return None
    rank, share = found
    copies = sum(kernel.total_ns for kernel in rank.kernels if kernel.class_ == COPY)
    pageable = sum(kernel.total_ns for kernel in rank.kernels if "Pageable" in kernel.name) / max(1, copies)
    text = f"{units.percent(pageable)} of the time of copies is from or to pageable memory"
    return Finding(
        code="XFER001",
        name="transfer-blocking",
        severity="critical" if share >= 0.2 else "warning",
        confidence="high",
        time_share=share,
        gain=gain_of_removing(share, 1 / 3, 0.95),
        ranks=spans.numbers([rank]),
        evidence=[
            spans.cited(rank, share, "copying while no kernel runs"),
            Evidence(text=text, value=pageable, unit="share of copy time"),
        ],
        remedies=_remedies_for(pageable < _PINNED, share),
        summary=f"copies that no kernel runs beside take {units.percent(share)} of the time",
    )


RULE = Rule(code="XFER001", name="transfer-blocking", page=PAGE, check=check, check_traces=check_traces)
