"""Tables of kernels, operators and source lines by time, of matrix products, and of changes between captures."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core import units
from paceline.report import words
from paceline.report.page.chart import meter
from paceline.report.page.markup import Markup, details, element, section, table
from paceline.report.trace.kernel_name import kernel_name
from paceline.report.trace.words import product_lines
from paceline.traces.analyze.across_ranks import LAUNCHER_KINDS, is_on_cpu, kernels_over, launchers_over, share_of
from paceline.traces.analyze.comparison import CaptureComparison, compare_captures
from paceline.traces.analyze.gpu_time import Kernel
from paceline.traces.analyze.launchers import Launcher
from paceline.traces.analyze.ranks import Traces
from paceline.traces.capture import CLASSES

_KERNELS, _LAUNCHERS, _CHANGES, _COLLECTIVES = 30, 15, 20, 30
_COLOURS = ("forward", "communication", "transfer")


def kernels(traces: Traces) -> Markup | None:
    """Return the section with the kernels that take most time over all ranks; None without GPU time."""
    found = kernels_over(traces.ranks)
    if not any(one.total_ns for one in found):
        return None
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
        table(heads, (_kernel(one, share_of(one.total_ns, found)) for one in found[:_KERNELS]), class_="kernels"),
        _more(len(found) - _KERNELS, "kernel"),
    )


def _kernel(one: Kernel, share: float) -> list[str | Markup]:
    times = [units.seconds(ns / 1e9) for ns in (one.mean_ns, one.max_ns, one.total_ns)]
    bar = element("div", meter(share, _COLOURS[one.class_]), element("small", units.percent(share)), class_="share")
    return [kernel_name(one.name), CLASSES[one.class_], f"{one.count:,}", *times, bar]


def launchers(traces: Traces) -> Markup | None:
    """Return the section with time by operator, module and source line, and matrix products; None without any."""
    kinds = launchers_over(traces.ranks)
    cpu = is_on_cpu(traces.ranks)
    times = ("Calls", "CPU time") if cpu else ("Launches", "GPU time")
    made = [_launched(LAUNCHER_KINDS[kind], times, found, open_=kind == "operator") for kind, found in kinds.items()]
    products = [element("li", line) for line in product_lines(traces.ranks)[1:]]
    if products:
        made.append(details("Products of matrices", element("ul", *products), class_="products"))
    title = "CPU time in operators" if cpu else "What launched the work"
    return section("launchers", title, *made) if made else None


def _launched(title: str, times: tuple[str, str], found: Sequence[Launcher], *, open_: bool) -> Markup:
    heads = ((title, ""), *((head, "num") for head in (*times, "Of it")))
    rows = (
        [
            kernel_name(one.name),
            f"{one.launches:,}",
            units.seconds(one.total_ns / 1e9),
            units.percent(share_of(one.total_ns, found)),
        ]
        for one in found[:_LAUNCHERS]
    )
    return details(title, table(heads, rows, class_="kernels"), open_=open_)


def collectives(traces: Traces) -> Markup | None:
    """Return the section with the collectives with the longest waiting times; None without any."""
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
    """Return the section with the changes since the captures `before`; None if there are none to compare with."""
    if before is None:
        return None
    found = compare_captures(before.ranks, traces.ranks)
    unit = (
        "of a step, mean over ranks"
        if found.per_step
        else "in total, mean over ranks, because steps are not marked in both captures"
    )
    heads = (("Part", ""), ("Before", "num"), ("After", "num"), ("Change", "num"))
    parts = (
        [name.replace("exposed", "not overlapped"), _time(old), _time(new), _signed(new - old)]
        for name, old, new in found.parts
    )
    return section(
        "against",
        "What changed",
        element("p", f"Times {unit}.", class_="quiet"),
        table(heads, parts, class_="ranks", stacks=True),
        _changes(found),
    )


def _changes(found: CaptureComparison) -> Markup:
    heads = (("Kernel", ""), ("Before", "num"), ("After", "num"), ("Change", "num"))
    rows = (
        [kernel_name(one.name), _time(one.before.total_ns), _time(one.after.total_ns), _signed(one.change_ns)]
        for one in found.kernels[:_CHANGES]
    )
    return table(heads, rows, class_="kernels")


def _time(ns: float) -> str:
    return units.seconds(ns / 1e9) if ns else "none"


def _signed(ns: float) -> str:
    return units.signed_seconds(ns / 1e9).replace("-", "−") if ns else "none"


def _more(count: int, noun: str) -> Markup | None:
    return (
        element("p", f"and {words.count(count, noun)} more are in the JSON result", class_="quiet")
        if count > 0
        else None
    )
