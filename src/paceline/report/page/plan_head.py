"""The head of the page on a plan: what it comes to, in one sentence and a handful of figures."""

from __future__ import annotations

from collections.abc import Sequence

from paceline import units
from paceline.plan.advice import Advice
from paceline.plan.catalogue import Offer
from paceline.plan.search import Plan, Wish
from paceline.report.page.markup import Markup, element, sentence
from paceline.report.page.verdict import Fact, facts
from paceline.report.plan_words import RECOMPUTATION, aged, axes, batches, dollars, hours, speed, turns


def headline(advice: Advice) -> str:
    """Say in one sentence what came of it."""
    best, name = advice.best, advice.wish.model.name
    if best is None:
        near = advice.found.nearest
        needs = f"{units.size(near.memory_bytes)} of {units.size(near.case.cluster.memory_bytes)}"
        return f"{name} does not surely fit {advice.machines.name}: at least {needs} a GPU"
    return f"{name} on {advice.machines.name}: {units.seconds(best.step_s)} a step, {axes(best.case.layout)}"


def header(advice: Advice) -> Markup:
    """Make the top of the page."""
    best = advice.best
    mark, mood = ("✓", "good") if best else ("✗", "critical")
    said = f"fits with probability {best.fits:.2f}" if best else "none surely fits"
    return element(
        "header",
        element("p", element("b", "paceline plan"), element("span", advice.machines.name), class_="brand"),
        element("p", element("span", mark, aria_hidden="true"), element("strong", said), class_=f"chip {mood}"),
        element("h1", sentence(headline(advice))),
        element("p", _meta(advice), class_="meta"),
        facts(_facts(advice, best or advice.found.nearest)),
    )


def _meta(advice: Advice) -> str:
    found = advice.found
    played = f", {found.played} pipelines played" if found.played else ""
    if advice.best is None:
        return f"{found.looked_at:,} configurations looked at{played}; the nearest one is shown"
    return f"the fastest of {found.looked_at:,} configurations that surely fits{played}"


def _facts(advice: Advice, plan: Plan) -> list[Fact]:
    low, high = plan.step_s / (1 + advice.spread), plan.step_s * (1 + advice.spread)
    cluster = plan.case.cluster
    how = ", ".join(filter(None, (batches(plan), turns(plan), RECOMPUTATION[plan.case.training.recompute])))
    held = f"of {units.size(cluster.memory_bytes)}, as nvidia-smi shows it; fits with probability {plan.fits:.3f}"
    throughput, unit = speed(plan)
    per_gpu = f"{units.rate(throughput / cluster.count, unit)} a GPU"
    return [
        ("Layout", axes(plan.case.layout), how),
        ("Step", units.seconds(plan.step_s), f"{units.seconds(low)} to {units.seconds(high)} for four in five"),
        ("Throughput", units.rate(throughput, unit), per_gpu),
        ("Memory of a GPU", units.size(plan.memory_bytes), held),
        ("Largest micro-batch", f"{advice.largest_micro_batch}", "that surely fits so"),
        *_cost(advice),
    ]


def _cost(advice: Advice) -> list[Fact]:
    cost = advice.cost
    if cost is None:
        return []
    took = ("All the training", hours(cost.hours), f"{hours(cost.hours_low)} to {hours(cost.hours_high)}")
    if cost.usd is None:
        return [took, ("Cost", units.MISSING, "no price is known for these machines; give it with --price")]
    source = f"{cost.source}{'' if cost.given else aged(cost.age_days)}"
    between = f"{dollars(cost.usd_low)} to {dollars(cost.usd_high)}; {source}"
    return [took, ("Cost", dollars(cost.usd), between)]


def offers_headline(found: Sequence[Offer]) -> str:
    """Say in one sentence what the cheapest and the fastest machines come to."""
    cheap, fast = found[0], found[-1]
    if cheap is fast:
        return f"{cheap.machines.name}: {dollars(cheap.usd)} in {hours(cheap.hours)}"
    return (
        f"From {dollars(cheap.usd)} in {hours(cheap.hours)} on {cheap.machines.name} "
        f"to {hours(fast.hours)} for {dollars(fast.usd)} on {fast.machines.name}"
    )


def offers_header(wish: Wish, found: Sequence[Offer], steps: int) -> Markup:
    """Make the top of the page on a catalogue."""
    return element(
        "header",
        element("p", element("b", "paceline plan"), element("span", "the price table"), class_="brand"),
        element(
            "p", element("span", "✓", aria_hidden="true"), element("strong", "machines compared"), class_="chip good"
        ),
        element("h1", sentence(offers_headline(found))),
        element("p", f"{wish.model.name}, {steps:,} steps of {wish.global_batch:,} samples, on demand", class_="meta"),
    )
