"""The pipeline schedule of the chosen plan: the simulated timeline of its first micro-batches."""

from __future__ import annotations

from paceline.core import units
from paceline.plan.cost.pipeline import PipelineStages, Span, Spans, spans
from paceline.plan.search.advice import Advice
from paceline.report.page.chart import HEIGHT, WIDTH, legend
from paceline.report.page.markup import Markup, element, section, table
from paceline.report.plan.words import turns

_KINDS = {"forward": "forward", "backward": "backward", "input": "backward", "weight": "optimizer"}
_NAMES = {
    "forward": "forward",
    "backward": "backward",
    "input": "backward, for the stage before",
    "weight": "for weights",
}
_MOST_RANKS = 16
_ROUNDS = 2  # rounds of as many micro-batches as ranks


def stages(advice: Advice) -> Markup | None:
    """Return the section with the timeline of the pipeline and the work of each rank; None without a simulation."""
    plan = advice.best
    if plan is None or plan.stages is None:
        return None
    run = plan.stages.run
    micro_steps = min(run.pipe.micro_steps, _ROUNDS * run.pipe.ranks)
    played = spans(run.pipe._replace(micro_steps=micro_steps), run.passes)
    said = (
        f"{turns(plan)}: the busiest rank is idle {units.percent(run.idle)} of the time. The chart shows the "
        f"simulation of the first {micro_steps} of {run.pipe.micro_steps} micro-batches; grey is idle time."
    )
    kinds = dict.fromkeys(task.kind for rank in played for task, _, _ in rank)
    return section(
        "stages",
        "The pipeline",
        element("p", said, class_="quiet"),
        _drawing(played),
        legend([(_KINDS[kind], _NAMES[kind]) for kind in kinds]),
        _ranks(plan.stages, plan.case.cluster.memory_bytes),
    )


def _drawing(played: Spans) -> Markup:
    whole = max(rank[-1][2] for rank in played)
    lanes = [
        element(
            "div", element("span", f"rank {rank}"), element("div", _lane(own, whole), class_="strip"), class_="lane"
        )
        for rank, own in enumerate(played[:_MOST_RANKS])
    ]
    more = len(played) - _MOST_RANKS
    rest = element("p", f"and {more} more ranks", class_="quiet") if more > 0 else None
    return element("div", *lanes, rest, class_="turns", role="img", aria_label=f"{len(played)} pipeline ranks")


def _lane(own: tuple[Span, ...], whole: float) -> Markup:
    drawn: dict[str, list[str]] = {}
    for task, begin, end in own:
        left, right = round(begin / whole * WIDTH), round(end / whole * WIDTH)
        drawn.setdefault(_KINDS[task.kind], []).append(f"M{left} 0H{max(left + 1, right - 1)}V{HEIGHT}H{left}z")
    paths = (element("path", d="".join(parts), class_=class_) for class_, parts in drawn.items())
    box = {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "preserveAspectRatio": "none", "aria_hidden": "true"}
    return element("svg", *paths, **box)


def _ranks(found: PipelineStages, available: float) -> Markup:
    pipe = found.run.pipe
    rows = (
        [
            f"{rank}",
            " + ".join(f"{blocks}" for blocks in found.blocks[rank :: pipe.ranks]),
            units.seconds(found.run.busy_s[rank]),
            units.size(found.memory_bytes[rank]),
            units.percent(found.memory_bytes[rank] / available),
        ]
        for rank in range(pipe.ranks)
    )
    heads = (("Rank", "num"), ("Blocks", ""), ("Computes", "num"), ("Memory", "num"), ("Of its GPU", "num"))
    listed = table(heads, rows, class_="stages")
    return element("details", element("summary", "What each rank has"), listed, class_="each")
