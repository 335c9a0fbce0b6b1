"""The cost on on-demand and spot machines, and the comparison of machine offers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date

from paceline.core import units
from paceline.plan.cost.money import TrainingCost, age_days
from paceline.plan.search.advice import Advice
from paceline.plan.search.offers import MachineOffer, Offers
from paceline.report.page.axis import axis
from paceline.report.page.chart import Frame, dots, legend, line, meter, plot
from paceline.report.page.markup import Markup, element, section, table
from paceline.report.plan.front import why_not
from paceline.report.plan.words import aged, dollars, energy, hours

_FAR = 4.0  # offers beyond this multiple of the highest price or time of the best ones are not drawn


def cost(advice: Advice) -> Markup | None:
    """Return the section that compares on-demand and spot machines; None without a cost."""
    found = advice.cost
    if found is None:
        return None
    amount, basis = energy(found, advice.wish.cluster.gpu)
    energy_said = element("p", f"Energy: {amount}, {basis.partition(' (')[0]}.", class_="quiet", title=basis)
    if found.usd is None:
        no_price = (
            "The price of these machines is unknown; give it with --price (price of all machines together, per hour)."
        )
        return section("cost", "What it costs", element("p", no_price, class_="quiet"), energy_said)
    said = f"{found.steps:,} steps. The intervals contain 80% of the published measurements of similar training runs."
    heads = (("", ""), ("USD", "num"), ("", "bar"), ("Takes", "num"), ("80% interval", "num long"))
    return section(
        "cost",
        "What it costs",
        element("p", said, class_="quiet"),
        table(heads, _costs(found, found.usd), class_="plans"),
        element("p", _interruptions(found), class_="quiet") if found.spot else None,
        energy_said,
        element("p", _sources(found), class_="quiet"),
    )


def _costs(found: TrainingCost, usd: float) -> list[list[str | Markup]]:
    spot = found.spot
    most = max(usd, spot.usd if spot else 0.0)
    between = f"{dollars(found.usd_low)} to {dollars(found.usd_high)}"
    rows: list[list[str | Markup]] = [
        ["on demand", dollars(usd), meter(usd / most), hours(found.hours), between],
    ]
    if spot is not None:
        wide = f"{dollars(_times(spot.usd, found.usd_low, usd))} to {dollars(_times(spot.usd, found.usd_high, usd))}"
        rows.append(["spot", dollars(spot.usd), meter(spot.usd / most), hours(spot.hours), wide])
    return rows


def _sources(found: TrainingCost) -> str:
    """Return a sentence on the sources of the prices."""
    age = "" if found.given else aged(found.age_days)
    spot = f" Spot: {found.spot.source}." if found.spot is not None else ""
    return f"Prices: on demand {units.money(found.usd_per_hour)} an hour, {found.source}{age}.{spot}"


def _times(value: float, end: float | None, middle: float) -> float:
    return value * (end or middle) / middle


def _interruptions(found: TrainingCost) -> str:
    spot = found.spot
    if spot is None:
        return ""
    return (
        f"Spot machines: {spot.interruptions:.1f} interruptions are expected. The cost is lowest with a "
        f"checkpoint every {units.seconds(spot.checkpoint_every_s)}. Time and price include interruptions and "
        "checkpoints."
    )


def offers(found: Offers, today: date) -> Markup:
    """Return the section with the offers that no other offer beats in both time and money."""
    heads = (
        ("Machines", ""), ("GPUs", "num"), ("Takes", "num"), ("On demand", "num"), ("Spot", "num"), ("Layout", ""),
    )  # fmt: skip
    said = (
        "Price of the training on on-demand machines against its time. For each machine in the list, no other "
        "machine is both faster and cheaper."
    )
    sources = dict.fromkeys(offer.machines.instance.price_source for offer in found.best if offer.machines.instance)
    told = "; ".join(f"{source}{aged(age_days(source, today))}" for source in sources)
    return section(
        "offers",
        "Cheaper or faster",
        element("p", said, class_="quiet"),
        _drawing(found.best, found.beaten),
        legend(
            [
                ("line-0", "in the list"),
                ("line-1", f"{len(found.beaten)} slower and more expensive than another machine"),
            ]
        ),
        table(heads, (_offer(offer) for offer in found.best), class_="plans"),
        element("p", f"Prices: {told}", class_="quiet") if told else None,
    )


def _drawing(best: Sequence[MachineOffer], beaten: Sequence[MachineOffer]) -> Markup:
    times, prices = [offer.hours * 3600 for offer in best], [offer.usd for offer in best]
    near = [offer for offer in beaten if offer.usd <= _FAR * prices[-1] and offer.hours * 3600 <= _FAR * times[0]]
    others = [offer.hours * 3600 for offer in near], [offer.usd for offer in near]
    frame = Frame(x=axis([1.04 * max([*times, *others[0]])], "s"), y=axis([1.08 * max([*prices, *others[1]])], ""))
    return plot(
        frame,
        dots(frame, *others, "line-1"),
        line(frame, times, prices, "curve"),
        dots(frame, times[1:], prices[1:], "curve"),
        dots(frame, times[:1], prices[:1], "chosen"),
        label=f"Cost against time of {len(best) + len(near)} offers, the cheapest marked",
        ticks=(5, 4),
    )


def _offer(offer: MachineOffer) -> list[str | Markup]:
    instance = offer.machines.instance
    price = f" {instance.region}, {units.money(offer.machines.usd_per_hour)} an hour" if instance else ""
    region = element("small", price)
    return [
        element("span", offer.machines.name, region),
        f"{offer.machines.cluster.count:,} x {offer.machines.cluster.gpu.name}",
        hours(offer.hours),
        dollars(offer.usd),
        units.MISSING if offer.spot is None else dollars(offer.spot.usd),
        element("code", str(offer.plan.case.layout)),
    ]


def refused(counts: Mapping[str, int]) -> Markup | None:
    """Return the table with the number of machines without an offer for each reason; None if all have an offer."""
    return why_not(counts, sum(counts.values()), "Why other machines were rejected")
