"""Which of very many ranks are worth a row? Those whose shares of the time are furthest from the median rank's."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from paceline.traces.summary import RankTrace

PARTS = ("compute", "communication", "copy", "idle")  # of a span; communication and copies are the exposed ones


def shares_of(rank: RankTrace) -> dict[str, float]:
    """Return the shares of a rank's span by `PARTS`, which add up to 1; all zero where it has none."""
    own = rank.breakdown
    parts = (own.compute_ns, own.exposed_communication_ns, own.exposed_copy_ns, own.idle_ns)
    return {name: ns / own.span_ns if own.span_ns else 0.0 for name, ns in zip(PARTS, parts, strict=True)}


def unusual(ranks: Sequence[RankTrace], most: int) -> list[RankTrace]:
    """Return as many ranks as may be shown, in their order: all of them, or those furthest from the median."""
    if len(ranks) <= most:
        return list(ranks)
    each = [shares_of(rank) for rank in ranks]
    usual = {name: median(shares[name] for shares in each) for name in PARTS}
    apart = [sum(abs(shares[name] - usual[name]) for name in PARTS) for shares in each]
    furthest = sorted(range(len(ranks)), key=lambda place: -apart[place])[:most]
    return [ranks[place] for place in sorted(furthest)]
