"""The throughput of the best plan for several numbers of GPUs."""

from __future__ import annotations

from paceline.core import units
from paceline.plan.search.advice import Advice, Scaled
from paceline.report.page.axis import axis
from paceline.report.page.chart import Frame, dots, legend, line, meter, plot
from paceline.report.page.markup import Markup, element, section, table
from paceline.report.plan.words import speed


def scaling(advice: Advice) -> Markup | None:
    """Return the section with the best plan on other numbers of GPUs and the same batch size; None without any."""
    found = advice.scaling
    if len(found) < 2:
        return None
    batch = f"the same batch of {advice.wish.global_batch:,} samples a step"
    unit = speed(found[0].plan)[1]
    heads = [("GPUs", "num"), (unit.capitalize(), "num"), ("Per GPU", "num"), ("", "bar")]
    heads += [("Communication that does not overlap with computing", "num"), ("Layout", "")]
    said = f"{unit.capitalize()} of the best plan on each number of GPUs, with {batch}."
    return section(
        "scaling",
        "Scaling",
        element("p", said, class_="quiet"),
        _drawing(advice, found),
        legend([("line-0", "predicted"), ("even-key", "linear scaling")]),
        table(heads, (_row(each) for each in found), class_="plans"),
    )


def _drawing(advice: Advice, found: tuple[Scaled, ...]) -> Markup:
    counts = [float(each.plan.case.cluster.count) for each in found]
    speeds = [speed(each.plan)[0] for each in found]
    unit = speed(found[0].plan)[1]
    asked = next(each for each in found if each.plan.case.cluster.count == advice.wish.cluster.count)
    one = speed(asked.plan)[0] / asked.plan.case.cluster.count
    frame = Frame(x=axis(counts, "GPUs"), y=axis([*speeds, one * counts[-1]], ""))
    told = ", ".join(f"{count:g} GPUs {units.rate(each, unit)}" for count, each in zip(counts, speeds, strict=True))
    return plot(
        frame,
        line(frame, [0.0, counts[-1]], [0.0, one * counts[-1]], "even"),
        line(frame, counts, speeds, "curve"),
        dots(frame, counts, speeds, "curve"),
        dots(frame, [float(asked.plan.case.cluster.count)], [speed(asked.plan)[0]], "chosen"),
        label=f"Throughput against GPUs: {told}",
        ticks=(5, 4),
    )


def _row(each: Scaled) -> list[str | Markup]:
    plan = each.plan
    return [
        f"{plan.case.cluster.count:,}",
        f"{speed(plan)[0]:,.0f}",
        units.percent(each.efficiency),
        meter(min(1.0, each.efficiency)),
        units.percent(each.exposed),
        element("code", str(plan.case.layout)),
    ]
