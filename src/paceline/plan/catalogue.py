"""Which machines are best? Every instance of the price table, in clusters of several sizes, each at its best layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.errors import UsageError
from paceline.hardware.catalogue import Instance, instances
from paceline.plan.constants import Fitted
from paceline.plan.described import Machines, card_of, of_instance
from paceline.plan.search import Plan, Wish, search

_NODES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, kw_only=True)
class Offer:
    """Machines, the fastest plan on them, and what all steps take there."""

    machines: Machines
    plan: Plan
    hours: float
    usd: float


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What an offer must keep to; None: no limit."""

    usd_per_hour: float | None = None
    hours: float | None = None
    region: str | None = None
    nodes: tuple[int, ...] = _NODES
    table: tuple[Instance, ...] | None = None  # of prices; None: the one that is shipped


def offers(wish: Wish, steps: int, limits: Limits, fitted: Fitted) -> tuple[list[Offer], dict[str, int]]:
    """Plan for every instance of the table.

    Returns:
        Offers within the limits that no other beats in both time and money, cheapest first; and why others are none.

    Raises:
        UsageError: Nothing is left.
    """
    found, refused = [], dict.fromkeys(("no price", "card not known", "does not fit", "beyond a limit"), 0)
    for instance in _distinct(instances() if limits.table is None else limits.table):
        if limits.region is not None and instance.region != limits.region:
            continue
        for nodes in limits.nodes:
            offer = _offer(wish, instance, nodes, steps, fitted)
            if isinstance(offer, str):
                refused[offer] += 1
            elif _within(offer, limits):
                found.append(offer)
            else:
                refused["beyond a limit"] += 1
    if not found:
        counts = ", ".join(f"{count} {why}" for why, count in refused.items() if count) or "no instance in that region"
        raise UsageError(f"no instance of the table will do: {counts}; widen --max-price, --deadline or --region")
    return _unbeaten(found), {why: count for why, count in refused.items() if count}


def _offer(wish: Wish, instance: Instance, nodes: int, steps: int, fitted: Fitted) -> Offer | str:
    if instance.on_demand_usd_h is None:
        return "no price"
    if instance.gpu_count < 1 or card_of(instance) is None:
        return "card not known"
    machines = of_instance(instance, nodes)
    try:
        found = search(replace(wish, cluster=machines.cluster), fitted)
    except UsageError:
        return "does not fit"
    if not found.plans:
        return "does not fit"
    hours = found.plans[0].step_s * steps / 3600
    return Offer(machines=machines, plan=found.plans[0], hours=hours, usd=hours * (machines.usd_per_hour or 0.0))


def _within(offer: Offer, limits: Limits) -> bool:
    rate = offer.machines.usd_per_hour or 0.0
    return (limits.usd_per_hour is None or rate <= limits.usd_per_hour) and (
        limits.hours is None or offer.hours <= limits.hours
    )


def _unbeaten(found: Sequence[Offer]) -> list[Offer]:
    kept: list[Offer] = []
    for offer in sorted(found, key=lambda each: (each.usd, each.hours)):
        if not kept or offer.hours < kept[-1].hours:
            kept.append(offer)
    return kept


def _distinct(table: Sequence[Instance]) -> list[Instance]:
    """Of instances alike but for processors and memory of the host, the cheapest."""
    best: dict[tuple[str, str, str, float], Instance] = {}
    for each in table:
        key = (each.provider, each.region, each.gpu, each.gpu_count)
        price = each.on_demand_usd_h
        if key not in best or (price is not None and price < (best[key].on_demand_usd_h or float("inf"))):
            best[key] = each
    return list(best.values())
