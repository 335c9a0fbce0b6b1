"""Finds the best machines: every instance type of the price table in clusters of several sizes.

Each cluster gets its best layout. Machines are compared by closed forms. Pipelines are simulated only on machines that
no other machines beat in both time and money.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.core.errors import UsageError
from paceline.hardware.catalogue import Instance, instances
from paceline.plan.cost.constants import Fitted, spread_of
from paceline.plan.cost.machines import Machines, gpu_of_instance, machines_of_instance
from paceline.plan.cost.money import SpotRisk, spot_risk
from paceline.plan.cost.plan import Plan
from paceline.plan.search.search import search
from paceline.plan.search.wish import SearchResult, Wish, unbeaten

_NODES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, kw_only=True)
class MachineOffer:
    """Machines, the fastest plan on them, and the hours and price of all steps on on-demand and spot machines."""

    machines: Machines
    plan: Plan
    hours: float
    usd: float
    spot: SpotRisk | None
    spread: float  # relative error that hours and price of four of five predictions stay below

    def ends(self, value: float) -> tuple[float, float]:
        """Return the 80% interval of a predicted number of hours or dollars, from the spread of prediction errors."""
        return value / (1 + self.spread), value * (1 + self.spread)


@dataclass(frozen=True, kw_only=True)
class OfferLimits:
    """The limits on price, time and region of an offer; None for no limit."""

    usd_per_hour: float | None = None
    hours: float | None = None
    region: str | None = None
    nodes: tuple[int, ...] = _NODES
    table: tuple[Instance, ...] | None = None  # table of prices; None: the built-in one


@dataclass(frozen=True, kw_only=True)
class Offers:
    """All offers of a price table within the limits.

    Attributes:
        best: Offers that no other beats in both time and price, cheapest first.
        beaten: All other offers, cheapest first.
        refused: Number of refused machines for each reason.
    """

    best: tuple[MachineOffer, ...]
    beaten: tuple[MachineOffer, ...]
    refused: dict[str, int]

    @property
    def cheapest_spot(self) -> MachineOffer | None:
        """Return the cheapest offer on spot machines; None if no spot price is known."""
        priced = [(offer.spot.usd, offer) for offer in (*self.best, *self.beaten) if offer.spot]
        return min(priced, key=lambda each: each[0], default=(0.0, None))[1]


def find_offers(wish: Wish, steps: int, limits: OfferLimits, fitted: Fitted) -> Offers:
    """Return the offers of all instance types in the price table.

    Args:
        wish: What to train. The cluster in it is replaced by that of each offer.
        steps: Number of training steps.
        limits: Limits on price, time and region.
        fitted: The fitted constants.

    Raises:
        UsageError: No instance is within the limits.
    """
    found, refused = [], Counter[str]()
    for instance in _distinct(instances() if limits.table is None else limits.table):
        if limits.region is not None and instance.region != limits.region:
            continue
        for nodes in limits.nodes:
            offer = _offer(wish, (instance, nodes), steps, fitted)
            if isinstance(offer, str):
                refused[offer] += 1
            elif _within(offer, limits):
                found.append(offer)
            else:
                refused["over a limit"] += 1
    found.sort(key=lambda each: (each.usd, each.hours))
    best = unbeaten(found, lambda offer: offer.hours)  # found is sorted by price
    simulated = [search(replace(wish, cluster=each.machines.cluster), fitted) for each in best]
    closer = [_priced(each.machines, result, steps, fitted) for each, result in zip(best, simulated, strict=True)]
    kept = tuple(each for each in closer if _within(each, limits))
    refused["over a limit"] += len(closer) - len(kept)
    if not kept:
        reasons = ", ".join(f"{count} {why}" for why, count in refused.items() if count) or "no instance in that region"
        raise UsageError(f"no instance in the table qualifies: {reasons}; change --max-price, --deadline or --region")
    return Offers(
        best=kept,
        beaten=tuple(each for each in found if each not in best),
        refused={why: count for why, count in refused.items() if count},
    )


def _offer(wish: Wish, rented: tuple[Instance, int], steps: int, fitted: Fitted) -> MachineOffer | str:
    """Return the offer for a number of instances, predicted by closed forms, or the reason why there is none."""
    instance, nodes = rented
    if instance.on_demand_usd_h is None:
        return "no price"
    card = gpu_of_instance(instance)
    if instance.gpu_count < 1 or card is None:
        return "unknown GPU"
    if card.peak_flops and wish.precision not in card.peak_flops:
        return f"GPU without {wish.precision}"
    machines = machines_of_instance(instance, nodes)
    try:
        found = search(replace(wish, cluster=machines.cluster), fitted, most_tasks=0)
    except UsageError:
        return "does not fit"
    return _priced(machines, found, steps, fitted) if found.plans else "does not fit"


def _priced(machines: Machines, found: SearchResult, steps: int, fitted: Fitted) -> MachineOffer:
    plan = found.plans[0]
    hours = plan.step_s * steps / 3600
    usd = hours * (machines.usd_per_hour or 0.0)
    spread = spread_of(plan.case, fitted)
    return MachineOffer(
        machines=machines, plan=plan, hours=hours, usd=usd, spot=spot_risk(plan, machines, hours), spread=spread
    )


def _within(offer: MachineOffer, limits: OfferLimits) -> bool:
    rate = offer.machines.usd_per_hour or 0.0
    return (limits.usd_per_hour is None or rate <= limits.usd_per_hour) and (
        limits.hours is None or offer.hours <= limits.hours
    )


def _distinct(table: Sequence[Instance]) -> list[Instance]:
    """Return the cheapest of each group of instances that differ only in host processors and memory."""
    best: dict[tuple[str, str, str, float], Instance] = {}
    for each in table:
        key = (each.provider, each.region, each.gpu, each.gpu_count)
        price = each.on_demand_usd_h
        if key not in best or (price is not None and price < (best[key].on_demand_usd_h or float("inf"))):
            best[key] = each
    return list(best.values())
