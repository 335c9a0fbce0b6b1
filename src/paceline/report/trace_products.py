"""What does a person read of products of matrices? How fast they were, beside what the GPU could do at their shapes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from paceline.core import units
from paceline.explain.analysis.captures import roof_of
from paceline.hardware.catalogue import match_gpu
from paceline.report.words import count
from paceline.traces.analyze.matrix_products import MatrixProduct, matrix_time
from paceline.traces.analyze.ranks import RankTrace

_MOST = 8
_CPU = "this CPU"


def product_lines(ranks: Sequence[RankTrace]) -> list[str]:
    """Say how fast products were, what takes most over all captures first, and whether tensor cores made them."""
    found: dict[tuple[str | None, str, str, str], list[MatrixProduct]] = defaultdict(list)
    for rank in ranks:
        device = _CPU if rank.launchers is not None and rank.launchers.on_cpu else rank.gpu
        for one in rank.launchers.products if rank.launchers is not None else ():
            found[device, one.name, _shapes(one), one.format].append(one)
    first = sorted(found, key=lambda key: -sum(one.total_ns for one in found[key]))[:_MOST]
    return [*_tensor_cores(ranks), *(_line(key[0], found[key]) for key in first)]


def _tensor_cores(ranks: Sequence[RankTrace]) -> list[str]:
    """Say how much of the time of kernels that multiply matrices runs on tensor cores."""
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


def _line(gpu_name: str | None, same: Sequence[MatrixProduct]) -> str:
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
