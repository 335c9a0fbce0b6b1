"""Shares of the time of captures, as rules cite them: of the span from the first GPU event to the last."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline import units
from paceline.explain.facts import gain_of_removing
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.supply import WORTH
from paceline.traces.many import Traces
from paceline.traces.summary import RankTrace

Part = Callable[[RankTrace], int]  # nanoseconds of a rank


def timed(traces: Traces) -> list[RankTrace]:
    """Return the ranks with GPU events that took time."""
    return [rank for rank in traces.ranks if rank.breakdown.span_ns > 0]


def share(rank: RankTrace, part: Part) -> float:
    """Return what share of a rank's span a part takes."""
    return part(rank) / rank.breakdown.span_ns


def worst(traces: Traces, part: Part) -> tuple[RankTrace, float] | None:
    """Return the rank of whose span a part takes most, with that share; None without any."""
    return max(((rank, share(rank, part)) for rank in timed(traces)), key=lambda pair: pair[1], default=None)


def numbers(ranks: Sequence[RankTrace]) -> list[int]:
    """Return the numbers of ranks, where they are known."""
    return [rank.rank for rank in ranks if rank.rank is not None]


def cited(rank: RankTrace, value: float, what: str) -> Evidence:
    """Cite a share of a rank's span."""
    named = f" on {rank.title}" if rank.rank is not None or rank.one_of_several else ""
    span = units.seconds(rank.breakdown.span_ns / 1e9)
    text = f"{what} takes {units.percent(value)} of {span}{named} ({rank.breakdown.events:,} GPU events)"
    return Evidence(text=text, value=value, unit="share of the span")


def waiting_share(traces: Traces, rank: int | None = None) -> float:
    """Return for what share of the time a rank waits in collectives for the last to come, on average over the others.

    Args:
        traces: Of several ranks.
        rank: Only where that one comes last; None: whoever does.
    """
    ranks = [one for one in traces.ranks if one.rank is not None and one.lasted_ns > 0]
    if len(ranks) < 2:
        return 0.0
    waited = sum(one.waited_ns for one in traces.matched.collectives if rank in (None, one.last))
    return waited / (len(ranks) - 1) / (sum(one.lasted_ns for one in ranks) / len(ranks))


def idle_for_batches(traces: Traces, *, serial: bool, code: str, name: str) -> Finding | None:
    """Return the finding that GPUs are idle while batches are fetched, by a loader with or without workers."""
    own = [rank for rank in timed(traces) if rank.loader_is_serial is serial]
    rank = max(own, key=lambda one: share(one, lambda r: r.idle.loader_ns), default=None)
    lost = share(rank, lambda one: one.idle.loader_ns) if rank is not None else 0.0
    if rank is None or lost < WORTH:
        return None
    gain = gain_of_removing(lost, 0.3, 0.95)
    change = (
        "DataLoader(num_workers=...): `paceline run` says how many" if serial else "more workers where cores are left"
    )
    who = "the training process makes a batch" if serial else "the workers' next batch is waited for"
    return Finding(
        code=code,
        name=name,
        severity="critical" if lost >= 0.2 else "warning",
        confidence="high" if serial else "low",
        time_share=lost,
        gain=gain,
        ranks=numbers([rank]),
        evidence=[cited(rank, lost, "being idle while a batch is fetched")],
        remedies=[Remedy(id="loader.workers", safety="exact", change=change, gain=gain)],
        summary=f"the GPU is idle {units.percent(lost)} of the time while {who}",
    )
