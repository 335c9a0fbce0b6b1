"""The section on the critical path, and on how changes would shorten it."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.core import units
from paceline.report import words
from paceline.report.page.chart import legend, meter, stacked
from paceline.report.page.markup import Markup, details, element, join, section, table
from paceline.report.trace.critical_path import NAMES
from paceline.report.trace.kernel_name import kernel_name
from paceline.traces.analyze.path_summary import PathSummary
from paceline.traces.analyze.ranks import RankTrace, Traces

COLOURS = {
    "compute": "forward", "communication": "communication", "copy": "transfer", "host": "other", "loader": "data_wait",
    "launch": "checkpoint", "gap": "idle", "return": "optimizer", "unknown": "idle",
}  # fmt: skip
_MOST, _KERNELS, _STEPS, _LONG = 8, 8, 30, 120


def path(traces: Traces) -> Markup | None:
    """Return the section on the critical paths of the first ranks; that of the first rank is unfolded."""
    found = [(rank, rank.path) for rank in traces.ranks if rank.path is not None][:_MOST]
    if not found:
        return None
    kinds = [kind for kind in NAMES if any(one.kinds_ns[kind] for _, one in found)]
    explained = (
        "The critical path is the chain of work that determines the end of the window. At each point in time, it "
        "contains the work that delayed the end."
    )
    return section(
        "path",
        "Critical path",
        element("p", explained, class_="quiet"),
        legend([(COLOURS[kind], NAMES[kind]) for kind in kinds]),
        *(_of_rank(rank, one, open_=place == 0) for place, (rank, one) in enumerate(found)),
    )


def _of_rank(rank: RankTrace, found: PathSummary, *, open_: bool) -> Markup:
    summary = join([element("b", rank.title), f" {units.seconds(found.length_ns / 1e9)}"])
    return details(
        summary, _bar(found.kinds_ns, named=True), _what_if(found), _kernels(found), _steps(found), open_=open_
    )


def _bar(kinds: Mapping[str, int], *, named: bool = False) -> Markup:
    whole = sum(kinds.values()) or 1
    parts = [(COLOURS[kind], NAMES[kind], ns / whole) for kind, ns in kinds.items() if ns]
    label = ", ".join(f"{name} {units.percent(share)}" for _, name, share in parts)
    return stacked(parts, f"On the critical path: {label}", named=named)


def _what_if(found: PathSummary) -> Markup:
    heads = (("If", ""), ("It would take", "num"), ("As fast", "num"), ("", "bar"))
    rows = []
    for one in found.what_if:
        times = units.factor(one.faster)
        left = one.after_ns / one.before_ns if one.before_ns else 0.0
        what = kernel_name(one.what) if len(one.what) > _LONG else one.what
        rows.append([what, units.seconds(one.after_ns / 1e9), times, meter(left, "forward")])
    return table(heads, rows, class_="whatif")


def _kernels(found: PathSummary) -> Markup | None:
    shown = list(found.kernels_ns.items())[:_KERNELS]
    if not shown:
        return None
    heads = (("Kernel on the path", ""), ("On it", "num"), ("Of it", "num"))
    rows = ([kernel_name(name), units.seconds(ns / 1e9), units.percent(ns / found.length_ns)] for name, ns in shown)
    return table(heads, rows, class_="kernels")


def _steps(found: PathSummary) -> Markup | None:
    if not found.steps:
        return None
    heads = (("Step", ""), ("What it waited for", "bar"), ("Length", "num"))
    rows = ([step.name, _bar(step.kinds_ns), units.seconds(step.length_ns / 1e9)] for step in found.steps[:_STEPS])
    left = len(found.steps) - _STEPS
    more = (
        element("p", f"and {words.count(left, 'step')} more are in the JSON result", class_="quiet")
        if left > 0
        else None
    )
    return element("div", table(heads, rows, class_="ranks"), more)
