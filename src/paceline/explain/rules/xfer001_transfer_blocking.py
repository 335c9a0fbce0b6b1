"""XFER001: copies to the GPU delay training."""

from __future__ import annotations

from dataclasses import replace

from paceline.core import units
from paceline.explain import words
from paceline.explain.analysis import captures as spans
from paceline.explain.analysis.gains import at_most
from paceline.explain.analysis.loader_model import WORTH
from paceline.explain.analysis.run_analysis import RankAnalysis, RunAnalysis
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule
from paceline.traces.analyze.path_summary import TRANSFER
from paceline.traces.analyze.ranks import Traces
from paceline.traces.capture import COPY
from paceline.traces.read.event_classes import is_transfer

_LEAST_GAIN = 1.02  # least gain of a replayed capture without copies
_PINNED = 0.1  # memory counts as pinned if pageable copies take at most this share of the copy time

PAGE = """
## What it means

While a batch is copied to the GPU, the GPU does not compute, or the host waits for the copy. If the batch is in
ordinary (pageable) memory, the driver has to copy it twice, and `non_blocking=True` has no effect.

## How it is detected

Paceline reports `transfer-blocking` if copies to the GPU take at least 5% of step time. The copy time is measured on
the GPU. If copies were measured on the GPU in too few steps, Paceline uses the copy time that was measured on the host.
The finding also shows whether the loader pins memory. Paceline reports the finding with and without pinned memory.

Copies on a separate CUDA stream overlap with computing, so their time does not count. Only the time that the computing
stream waits for them (`wait_stream`) counts. If the program makes such copies, the finding gives their number and
duration, and `loader.device_prefetch` is not proposed.

The expected gain is assumed: at most all of the copy time, if copies overlap with computing.

In profiler captures, Paceline reports `transfer-blocking` if copies from or to the host, during which no kernel runs,
take at least 5% of the time. Copies within the GPU do not count. Paceline replays the capture without these copies: if
the replay is less than 1.02x faster, Paceline does not report the finding.

The page [devices](../reference/devices.md) lists the hardware on which the finding `transfer-blocking` was tested.

## What helps

- `loader.pin_memory`: use `DataLoader(pin_memory=True)` and `batch.to(device, non_blocking=True)`.
- `loader.device_prefetch`: during the current step, copy the next batch to the GPU on a separate CUDA stream.
- `loader.small_dtype`: send uint8 values, and convert them to floating point on the GPU.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding XFER001, or None if it does not apply."""
    share = analysis.shares["transfer"]
    if analysis.on_cpu or share < WORTH:
        return None
    rank = max(analysis.ranks, key=lambda r: r.breakdown.shares["transfer"])
    return Finding(
        code="XFER001",
        name="transfer-blocking",
        severity="critical" if share >= 0.2 else "warning",
        confidence="medium",
        time_share=share,
        gain=at_most(share),
        ranks=[r.record.rank for r in analysis.ranks if r.breakdown.shares["transfer"] >= WORTH],
        evidence=[words.share_of_step(share, "copying to the GPU"), *_pinning(rank), *_overlapped(rank)],
        remedies=_remedies(rank, share),
        summary=f"copies to the GPU take {units.percent(share)} of the time",
    )


def _pins(rank: RankAnalysis) -> bool | None:
    value = rank.loader.settings.get("pin_memory") if rank.loader else None
    return value if isinstance(value, bool) else None


def _pinning(rank: RankAnalysis) -> list[Evidence]:
    pins = _pins(rank)
    if pins is None:
        return []
    text = f"the loader returns {'pinned' if pins else 'pageable'} memory (pin_memory={pins}, 1 loader)"
    return [Evidence(text=text, value=float(pins), unit="pinned")]


def _overlapped(rank: RankAnalysis) -> list[Evidence]:
    """Return evidence on the copies that run on a separate CUDA stream: their number and mean duration."""
    copies = (rank.record.summary.get("device") or {}).get("overlapped_copies") or {}
    count, timed = copies.get("count", 0), copies.get("timed", 0)
    if not count:
        return []
    each = f", {units.seconds(copies['timed_s'] / timed)} each ({timed} timed)" if timed else ""
    return [
        Evidence(
            text=f"{'1 copy runs' if count == 1 else f'{count:,} copies run'} on a separate CUDA stream{each}",
            value=float(count),
            unit="copies",
        )
    ]


def _remedies(rank: RankAnalysis, share: float) -> list[Remedy]:
    return _remedies_for(bool(_pins(rank)), share, prefetches=bool(_overlapped(rank)))


def _remedies_for(pins: bool, share: float, *, prefetches: bool = False) -> list[Remedy]:
    pin = Remedy(
        id="loader.pin_memory",
        safety="exact",
        change="use DataLoader(pin_memory=True) and batch.to(device, non_blocking=True)",
        gain=at_most(share),
    )
    prefetch = Remedy(
        id="loader.device_prefetch",
        safety="exact",
        change="copy the next batch from pinned memory on a separate CUDA stream, with non_blocking=True",
        gain=at_most(share),
    )
    smaller = Remedy(
        id="loader.small_dtype",
        safety="numeric",
        change="load uint8 values and convert them to floating point on the GPU",
        gain=at_most(share),
    )
    return [*([] if pins else [pin]), *([] if prefetches else [prefetch]), smaller]


def check_traces(traces: Traces) -> Finding | None:
    """Return finding XFER001 for captures: copies during which no kernel runs."""
    found = spans.worst(traces, lambda one: one.breakdown.exposed_transfer_ns)
    if found is None or found[1] < WORTH:
        return None
    rank, share = found
    gain = spans.gain_without([rank], TRANSFER, share)
    if gain.high < _LEAST_GAIN:
        return None
    copies = sum(kernel.total_ns for kernel in rank.kernels if kernel.class_ == COPY and is_transfer(kernel.name))
    pageable = sum(kernel.total_ns for kernel in rank.kernels if "Pageable" in kernel.name) / max(1, copies)
    text = f"{units.percent(pageable)} of the copy time is spent on copies from or to pageable memory"
    return Finding(
        code="XFER001",
        name="transfer-blocking",
        severity="critical" if share >= 0.2 else "warning",
        confidence="high",
        time_share=share,
        gain=gain,
        ranks=spans.numbers([rank]),
        evidence=[
            spans.cited(rank, share, "copying from or to the host while no kernel runs"),
            Evidence(text=text, value=pageable, unit="share of copy time"),
        ],
        remedies=[replace(remedy, gain=gain) for remedy in _remedies_for(pageable < _PINNED, share)],
        summary=f"copies from or to the host during which no kernel runs take {units.percent(share)} of the time",
    )


RULE = Rule(code="XFER001", name="transfer-blocking", page=PAGE, check=check, check_traces=check_traces)
