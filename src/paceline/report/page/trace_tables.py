"""Which kernels, operators and lines took the time, how fast were products of matrices, and what changed?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from paceline import units
from paceline.report import words
from paceline.report.page.chart import meter
from paceline.report.page.markup import Markup, details, element, section, table
from paceline.report.trace_products import product_lines
from paceline.traces.contrast import Contrast, contrasted
from paceline.traces.kernels import Kernel
from paceline.traces.many import Traces
from paceline.traces.model import CLASSES
from paceline.traces.operators import UNKNOWN, Launcher, Launchers

_KERNELS, _LAUNCHERS, _CHANGES, _COLLECTIVES = 30, 15, 20, 30
_COLOURS = ("forward", "communication", "transfer")


def kernels(traces: Traces) -> Markup | None:
    """List the kernels that take most over all ranks."""
    own: dict[str, list[Kernel]] = defaultdict(list)
    for rank in traces.ranks:
        for kernel in rank.kernels:
            own[kernel.name].append(kernel)
    totals = {name: sum(one.total_ns for one in some) for name, some in own.items()}
    everything = sum(totals.values())
    if not everything:
        return None
    first = sorted(totals, key=lambda name: (-totals[name], name))[:_KERNELS]
    heads = (
        ("Kernel", ""),
        ("Class", ""),
        ("Calls", "num"),
        ("Mean", "num"),
        ("Longest", "num"),
        ("Total", "num"),
        ("Of GPU time", "bar"),
    )
    return section(
        "kernels",
        "Kernels",
        *(element("p", line, class_="quiet") for line in product_lines(traces.ranks)[:1]),
        table(heads, (_kernel(own[name], totals[name] / everything) for name in first), class_="kernels"),
        _more(len(totals) - len(first), "kernel"),
    )


def _kernel(same: Sequence[Kernel], share: float) -> list[str | Markup]:
    calls, total = sum(one.count for one in same), sum(one.total_ns for one in same)
    longest = max(one.max_ns for one in same)
    times = [units.seconds(ns / 1e9) for ns in (total / calls, longest, total)]
    bar = element("div", meter(share, _COLOURS[same[0].class_]), element("small", units.percent(share)), class_="share")
    return [element("code", same[0].name), CLASSES[same[0].class_], f"{calls:,}", *times, bar]


def launchers(traces: Traces) -> Markup | None:
    """List operators, modules and lines that launched the work, and products with what they reached."""
    known = [rank.launchers for rank in traces.ranks if rank.launchers is not None]
    if not known:
        return None
    kinds: tuple[tuple[str, Callable[[Launchers], Sequence[Launcher]]], ...] = (
        ("Operators", lambda found: found.operators),
        ("Modules", lambda found: found.modules),
        ("Lines", lambda found: found.lines),
    )
    made = [
        _launched(title, [list(of(one)) for one in known], open_=place == 0) for place, (title, of) in enumerate(kinds)
    ]
    products = product_lines(traces.ranks)[1:]
    listed = (
        details("Products of matrices", element("ul", *(element("li", line) for line in products)), class_="products")
        if products
        else None
    )
    return section("launchers", "Who launched the work", *made, listed)


def _launched(title: str, each: Sequence[Sequence[Launcher]], *, open_: bool) -> Markup | None:
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for one in (one for own in each for one in own):
        totals[one.name][0] += one.launches
        totals[one.name][1] += one.total_ns
    everything = sum(ns for _, ns in totals.values())
    if set(totals) <= {UNKNOWN} or not everything:
        return None
    first = sorted(totals, key=lambda name: (-totals[name][1], name))[:_LAUNCHERS]
    heads = ((title, ""), ("Launches", "num"), ("GPU time", "num"), ("Of it", "num"))
    rows = (
        [
            element("code", name),
            f"{totals[name][0]:,}",
            units.seconds(totals[name][1] / 1e9),
            units.percent(totals[name][1] / everything),
        ]
        for name in first
    )
    return details(title, table(heads, rows, class_="kernels"), open_=open_)


def collectives(traces: Traces) -> Markup | None:
    """List the collectives that were waited for most."""
    found = sorted(traces.matched.collectives, key=lambda one: -one.waited_ns)
    if not found:
        return None
    heads = (
        ("Collective", ""),
        ("Ranks", "num"),
        ("First to last to come", "num"),
        ("Transfer", "num"),
        ("Waited, all ranks", "num"),
        ("Last", ""),
        ("Bus bandwidth", "num"),
    )
    rows = (
        [
            f"{one.kind} {one.number}" + (f" of group {one.group}" if one.group else ""),
            str(one.ranks),
            units.seconds(one.skew_ns / 1e9),
            units.seconds(one.transfer_ns / 1e9),
            units.seconds(one.waited_ns / 1e9),
            f"rank {one.last}",
            f"{one.bus_bytes_per_s / 1e9:.3g} GB/s" if one.bus_bytes_per_s is not None else units.MISSING,
        ]
        for one in found[:_COLLECTIVES]
    )
    return section(
        "collectives", "Collectives", table(heads, rows, class_="ranks"), _more(len(found) - _COLLECTIVES, "collective")
    )


def against(traces: Traces, before: Traces | None) -> Markup | None:
    """Say what changed since another capture."""
    if before is None:
        return None
    found = contrasted(before.ranks, traces.ranks)
    unit = "of a step, mean over ranks" if found.per_step else "in all, mean over ranks: steps are not marked in both"
    heads = (("Part", ""), ("Before", "num"), ("After", "num"), ("Change", "num"))
    parts = ([name, _time(old), _time(new), _signed(new - old)] for name, old, new in found.parts)
    return section(
        "against",
        "What changed",
        element("p", f"Times {unit}.", class_="quiet"),
        table(heads, parts, class_="ranks"),
        _changes(found),
    )


def _changes(found: Contrast) -> Markup:
    heads = (("Kernel", ""), ("Before", "num"), ("After", "num"), ("Change", "num"))
    rows = (
        [element("code", one.name), _time(one.before.total_ns), _time(one.after.total_ns), _signed(one.change_ns)]
        for one in found.kernels[:_CHANGES]
    )
    return table(heads, rows, class_="kernels")


def _time(ns: float) -> str:
    return units.seconds(ns / 1e9) if ns else "none"


def _signed(ns: float) -> str:
    return f"{'+' if ns >= 0 else '−'}{units.seconds(abs(ns) / 1e9)}" if ns else "none"


def _more(count: int, noun: str) -> Markup | None:
    return element("p", f"and {words.count(count, noun)} more, in the JSON", class_="quiet") if count > 0 else None
