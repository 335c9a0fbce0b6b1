"""The head of a plan's page: the result in one sentence, what to do first, and the main numbers."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core import units
from paceline.plan.cost.plan import Plan
from paceline.plan.search.advice import Advice
from paceline.plan.search.offers import MachineOffer
from paceline.plan.search.wish import Wish
from paceline.report.page.markup import Markup, element, sentence
from paceline.report.page.next_step import Then, first_step
from paceline.report.page.verdict import Fact, facts
from paceline.report.plan.words import RECOMPUTATION, axes, batches, dollars, hours, speed, turns


def headline(advice: Advice) -> str:
    """Return the result of planning in one sentence."""
    best, name = advice.best, advice.wish.model.name
    if best is None:
        near = advice.found.nearest
        needs = f"{units.size(near.memory_bytes)} on a GPU of {units.size(near.case.cluster.memory_bytes)}"
        return f"{name} does not fit on {advice.machines.name}: it needs at least {needs}"
    return f"{name} on {advice.machines.name}: {units.seconds(best.step_s)} a step, {axes(best.case.layout)}"


def header(advice: Advice, then: Then | None) -> Markup:
    """Return the head of the page."""
    best = advice.best
    mark, mood = ("✓", "good") if best else ("✗", "critical")
    said = f"fits with probability {best.fits:.2f}" if best else "does not fit"
    return element(
        "header",
        element("p", element("b", "paceline plan"), element("span", advice.machines.name), class_="brand"),
        element("p", element("span", mark, aria_hidden="true"), element("strong", said), class_=f"chip {mood}"),
        element("h1", sentence(headline(advice))),
        element("p", _meta(advice), class_="meta"),
        first_step(then.what, details=[], command=then.command) if then is not None else None,
        facts(_facts(advice, best or advice.found.nearest)),
    )


def _meta(advice: Advice) -> str:
    found = advice.found
    played = f"; {found.played} pipelines simulated" if found.played else ""
    if advice.best is None:
        return (
            f"None of the {found.looked_at:,} configurations fits in memory{played}. "
            "The configuration that is closest to fitting is shown."
        )
    return f"The fastest of {found.looked_at:,} configurations{played}"


def _facts(advice: Advice, plan: Plan) -> list[Fact]:
    low, high = plan.step_s / (1 + advice.spread), plan.step_s * (1 + advice.spread)
    cluster = plan.case.cluster
    how = ", ".join(filter(None, (batches(plan), turns(plan), RECOMPUTATION[plan.case.training.recompute])))
    held = f"of {units.size(cluster.memory_bytes)}; fits with probability {plan.fits:.2f}"
    throughput, unit = speed(plan)
    per_gpu = f"{units.rate(throughput / cluster.count, unit)} a GPU"
    return [
        ("Layout", axes(plan.case.layout), how),
        ("Step", units.seconds(plan.step_s), f"{units.seconds(low)} to {units.seconds(high)} (80% interval)"),
        ("Throughput", units.rate(throughput, unit), per_gpu),
        ("Memory of a GPU", units.size(plan.memory_bytes), held),
        ("Largest micro-batch", f"{advice.largest_micro_batch}", "that fits in memory with this layout"),
        *_cost(advice),
    ]


def _cost(advice: Advice) -> list[Fact]:
    cost = advice.cost
    if cost is None:
        return []
    took = ("Training time", hours(cost.hours), f"{hours(cost.hours_low)} to {hours(cost.hours_high)}")
    if cost.usd is None:
        return [took, ("Cost", units.MISSING, "the price is unknown; give it with --price")]
    return [took, ("Cost", dollars(cost.usd), f"{dollars(cost.usd_low)} to {dollars(cost.usd_high)}")]


def offers_headline(found: Sequence[MachineOffer]) -> str:
    """Return one sentence with the cheapest and the fastest machines."""
    cheap, fast = found[0], found[-1]
    if cheap is fast:
        return f"{cheap.machines.name}: {dollars(cheap.usd)} in {hours(cheap.hours)}"
    return (
        f"Cheapest: {dollars(cheap.usd)} in {hours(cheap.hours)}; fastest: {dollars(fast.usd)} in {hours(fast.hours)}"
    )


def _offered(name: str, offer: MachineOffer) -> Fact:
    return name, f"{dollars(offer.usd)}, {hours(offer.hours)}", offer.machines.name


def offers_header(wish: Wish, found: Sequence[MachineOffer], steps: int, then: Then | None) -> Markup:
    """Return the head of the page on machine offers."""
    return element(
        "header",
        element("p", element("b", "paceline plan"), element("span", "the price table"), class_="brand"),
        element(
            "p", element("span", "✓", aria_hidden="true"), element("strong", "machines compared"), class_="chip good"
        ),
        element("h1", sentence(offers_headline(found))),
        element("p", f"{wish.model.name}, {steps:,} steps of {wish.global_batch:,} samples, on demand", class_="meta"),
        first_step(then.what, details=[], command=then.command) if then is not None else None,
        facts([_offered("Cheapest", found[0]), _offered("Fastest", found[-1])]),
    )
