"""Shares of a profiler capture's time, from its first to its last GPU event, and the roofline of matrix products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.core import units
from paceline.explain.analysis.gains import at_most
from paceline.explain.analysis.loader_model import WORTH
from paceline.explain.model import Evidence, Finding, Gain, Remedy
from paceline.hardware.catalogue import Gpu
from paceline.traces.analyze.matrix_products import MatrixProduct
from paceline.traces.analyze.path_summary import LOADER
from paceline.traces.analyze.ranks import RankTrace, Traces

Part = Callable[[RankTrace], int]  # returns the nanoseconds of a part of a rank's time


def timed(traces: Traces) -> list[RankTrace]:
    """Return the ranks that have GPU events with a duration."""
    return [rank for rank in traces.ranks if rank.breakdown.span_ns > 0]


def share(rank: RankTrace, part: Part) -> float:
    """Return the time of a part (such as idle time) as a share of the time from a rank's first to last GPU event."""
    return part(rank) / rank.breakdown.span_ns


def worst(traces: Traces, part: Part) -> tuple[RankTrace, float] | None:
    """Return the rank with the largest share of a part of the time, and this share. None if no rank has GPU events."""
    return max(((rank, share(rank, part)) for rank in timed(traces)), key=lambda pair: pair[1], default=None)


def gain_without(ranks: Sequence[RankTrace], part: str, share: float) -> Gain:
    """Return the gain of removing a part of the time, bounded by a replay of the capture if there is one.

    Args:
        ranks: The ranks that have the part. Training is as fast as the rank with the smallest gain.
        part: A part of `traces.analyze.path_summary`.
        share: Share of the time that the part takes.
    """
    bound = at_most(share)
    played = [rank.without[part] for rank in ranks if part in rank.without]
    if not played:
        return bound
    return Gain(low=1.0, high=max(1.0, min(bound.high, *played)), basis="model")


def numbers(ranks: Sequence[RankTrace]) -> list[int]:
    """Return the rank numbers, without ranks whose number is unknown."""
    return [rank.rank for rank in ranks if rank.rank is not None]


def cited(rank: RankTrace, value: float, what: str) -> Evidence:
    """Return evidence that `what` takes the share `value` of the time from a rank's first to its last GPU event."""
    named = f" on {rank.title}" if rank.rank is not None or rank.one_of_several else ""
    span = units.seconds(rank.breakdown.span_ns / 1e9)
    text = f"{what} takes {units.percent(value)} of {span}{named} ({rank.breakdown.events:,} GPU events)"
    return Evidence(text=text, value=value, unit="share of the span")


def waiting_share(traces: Traces, rank: int | None = None) -> float:
    """Return the mean share of the time that ranks wait in collectives for the rank that arrives last.

    Args:
        traces: Captures of several ranks.
        rank: Count only collectives in which this rank arrives last; None counts all.
    """
    ranks = [one for one in traces.ranks if one.rank is not None and one.lasted_ns > 0]
    if len(ranks) < 2:
        return 0.0
    waited = sum(one.waited_ns for one in traces.matched.collectives if rank in (None, one.last))
    return waited / (len(ranks) - 1) / (sum(one.lasted_ns for one in ranks) / len(ranks))


def idle_for_batches(traces: Traces, *, serial: bool, code: str, name: str) -> Finding | None:
    """Return the finding that the GPU is idle while a loader fetches a batch, or None.

    Args:
        traces: The captures.
        serial: Whether to look at loaders without workers, or at loaders with workers.
        code: Code of the finding.
        name: Name of the finding.
    """
    own = [rank for rank in timed(traces) if rank.loader_is_serial is serial]
    rank = max(own, key=lambda one: share(one, lambda r: r.idle.loader_ns), default=None)
    lost = share(rank, lambda one: one.idle.loader_ns) if rank is not None else 0.0
    if rank is None or lost < WORTH:
        return None
    gain = gain_without([rank], LOADER, lost)
    change = (
        "use DataLoader(num_workers=...); `paceline run` finds how many workers to use"
        if serial
        else "use more workers if cores are free"
    )
    who = (
        "the training process loads a batch"
        if serial
        else "the training process waits for the next batch of the workers"
    )
    return Finding(
        code=code,
        name=name,
        severity="critical" if lost >= 0.2 else "warning",
        confidence="high" if serial else "low",
        time_share=lost,
        gain=gain,
        ranks=numbers([rank]),
        evidence=[cited(rank, lost, "GPU idle time while a batch is fetched")],
        remedies=[Remedy(id="loader.workers", safety="resampled", change=change, gain=gain)],
        summary=f"the GPU is idle during {units.percent(lost)} of the time while {who}",
    )


# ------------------------------------------------------------------------------------------------------------- roofline


@dataclass(frozen=True, kw_only=True)
class Roof:
    """The upper bound on the speed of a matrix product (roofline), and how close the product comes to it."""

    bound: str  # "compute" or "memory"
    flops_per_s: float  # FLOP/s that the GPU can reach at these shapes
    share: float  # reached FLOP/s as a share of this bound


def roof_of(product: MatrixProduct, gpu: Gpu) -> Roof | None:
    """Return the roofline of a matrix product, or None if the peak rate of its format is unknown.

    Peak rates are the dense ones of data sheets. No kernel reaches the last tenths of them.
    """
    peak, reached = gpu.peak_flops.get(product.format), product.flops_per_s
    if peak is None or reached is None or not product.bytes:
        return None
    by_memory = product.flops / product.bytes * gpu.memory_bytes_per_s
    roof = min(peak, by_memory)
    return Roof(bound="memory" if by_memory < peak else "compute", flops_per_s=roof, share=reached / roof)
