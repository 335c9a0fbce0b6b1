"""Sentences about captures: causes of idle time, operators and source lines, matrix products, and changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from paceline.core import units
from paceline.explain.analysis.captures import roof_of
from paceline.hardware.catalogue import match_gpu
from paceline.report.words import count
from paceline.traces.analyze.across_ranks import is_on_cpu, launchers_over, share_of
from paceline.traces.analyze.comparison import CaptureComparison, KernelChange
from paceline.traces.analyze.idle import MICRO_NS, Idle
from paceline.traces.analyze.matrix_products import MatrixProduct, matrix_time
from paceline.traces.analyze.ranks import RankTrace
from paceline.traces.capture import CLASSES

CAUSES = {
    "loader": "fetching batches",
    "synchronising": "calls that wait for the GPU",
    "host": "host launching work",
    "device": "work launched but not started",
    "unknown": "unknown",
}
_SHOWN = 0.01  # least share of idle time
_MOST_LAUNCHERS = 8
_MOST_PRODUCTS = 8
_CPU = "this CPU"
MAX_CHANGES = 10
_NAME_WIDTH = 60
_WORTH = 0.001  # least share of the span


def idle_text(idle: Idle) -> str:
    """Return the causes of idle time as text, the largest first; empty without idle time."""
    shown = [text for text, share in _parts(idle) if share >= _SHOWN]
    if not shown:
        return ""
    micro = units.percent(idle.micro_ns / idle.total_ns)
    return f"{', '.join(shown)}; {micro} in gaps below {units.seconds(MICRO_NS / 1e9)} ({idle.gaps:,} gaps)"


def main_cause(idle: Idle) -> str:
    """Return the largest cause of idle time as text; empty without idle time."""
    return next((text for text, _ in _parts(idle)), "")


def _parts(idle: Idle) -> list[tuple[str, float]]:
    found = sorted(((ns, CAUSES[name]) for name, ns in idle.causes_ns.items() if ns > 0), reverse=True)
    return [(f"{name} {units.percent(ns / idle.total_ns)}", ns / idle.total_ns) for ns, name in found]


def launcher_lines(ranks: Sequence[RankTrace]) -> list[str]:
    """Return lines on the operators, modules and source lines that launched most GPU time.

    Without GPU work, the lines are on those that took most CPU time.
    """
    lines = []
    of, each = ("of CPU time in operators", "call") if is_on_cpu(ranks) else ("of GPU time", "launch")
    for kind, found in launchers_over(ranks).items():
        for one in found[:_MOST_LAUNCHERS]:
            share, time = units.percent(share_of(one.total_ns, found)), units.seconds(one.total_ns / 1e9)
            lines.append(f"{kind}: {share} {of}, {time}, {count(one.launches, each)}: {one.name}")
    return lines


def product_lines(ranks: Sequence[RankTrace]) -> list[str]:
    """Return lines on the share of tensor cores, and on the rates of the matrix products that take most time."""
    found: dict[tuple[str | None, str, str, str], list[MatrixProduct]] = defaultdict(list)
    for rank in ranks:
        device = _CPU if rank.launchers is not None and rank.launchers.on_cpu else rank.gpu
        for one in rank.launchers.products if rank.launchers is not None else ():
            found[device, one.name, _shapes(one), one.format].append(one)
    first = sorted(found, key=lambda key: -sum(one.total_ns for one in found[key]))[:_MOST_PRODUCTS]
    return [*_tensor_cores(ranks), *(_product(key[0], found[key]) for key in first)]


def _tensor_cores(ranks: Sequence[RankTrace]) -> list[str]:
    """Return a line on the share of matrix kernels' time spent on tensor cores; empty without matrix kernels."""
    each = [matrix_time(rank.kernels) for rank in ranks]
    total = sum(one.total_ns for one in each)
    if not total:
        return []
    tensor, plain = sum(one.tensor_ns for one in each), sum(one.plain_ns for one in each)
    rest = total - tensor - plain
    unknown = f", {units.percent(rest / total)} unknown" if rest else ""
    where = (
        f"{units.percent(tensor / total)} on tensor cores, {units.percent(plain / total)} not on tensor cores{unknown}"
    )
    return [f"matrix products take {units.seconds(total / 1e9)} of kernel time: {where}"]


def _product(gpu_name: str | None, same: Sequence[MatrixProduct]) -> str:
    one = _added(same)
    gpu = match_gpu(gpu_name) if gpu_name is not None else None
    roof = roof_of(one, gpu) if gpu is not None else None
    reached = f"{_tera(one.flops_per_s)} TFLOP/s" if one.flops_per_s is not None else units.MISSING
    if roof is not None:
        near = f"{units.percent(roof.share)} of the {roof.bound} limit of {_tera(roof.flops_per_s)}"
    else:
        near = f"the {one.format} peak of {gpu_name or 'its GPU'} is unknown"
    time, calls = units.seconds(one.total_ns / 1e9), count(one.calls, "call")
    return f"product: {time}, {calls}, {one.format}: {reached}, {near}: {one.name} {_shapes(one)}"


def _tera(flops_per_s: float) -> str:
    return units.significant(flops_per_s / 1e12)


def _added(same: Sequence[MatrixProduct]) -> MatrixProduct:
    return MatrixProduct(
        name=same[0].name,
        shapes=same[0].shapes,
        format=same[0].format,
        calls=sum(one.calls for one in same),
        total_ns=sum(one.total_ns for one in same),
        flops=sum(one.flops for one in same),
        bytes=sum(one.bytes for one in same),
    )


def _shapes(one: MatrixProduct) -> str:
    return " ".join("x".join(map(str, shape)) for shape in one.shapes)


def contrast_lines(found: CaptureComparison) -> list[str]:
    """Return lines on the changes between captures: each part of the time, and the kernels that changed most."""
    span = max(found.parts[0][1], found.parts[0][2])
    if not span:
        return ["comparison with the earlier capture: neither of the two captures has GPU events"]
    unit = "per step" if found.per_step else "in total (because steps are not marked in both captures)"
    lines = [f"comparison with the earlier capture, mean over ranks, {unit}"]
    for name, before, after in found.parts:
        if max(before, after) > 0:
            part = name.replace("exposed", "not overlapped")
            lines.append(f"{part}: {_ns(before)} -> {_ns(after)} ({units.signed_seconds((after - before) / 1e9)})")
    changed = [one for one in found.kernels if abs(one.change_ns) >= _WORTH * span][:MAX_CHANGES]
    return [*lines, *(_kernel(one) for one in changed)]


def _kernel(one: KernelChange) -> str:
    name = one.name if len(one.name) <= _NAME_WIDTH else one.name[: _NAME_WIDTH - 1] + "…"
    if not one.before.count or not one.after.count:
        there, side = ("new", one.after) if one.after.count else ("gone", one.before)
        times = f"{there}, {count(round(side.count), 'call')}"
    else:
        times = f"{one.before.count:.3g} -> {one.after.count:.3g} calls"
    what = f"{_ns(one.before.total_ns)} -> {_ns(one.after.total_ns)}"
    return f"{units.signed_seconds(one.change_ns / 1e9)} {CLASSES[one.class_]}: {what}, {times}: {name}"


def _ns(nanoseconds: float) -> str:
    return units.seconds(nanoseconds / 1e9) if nanoseconds else "none"
