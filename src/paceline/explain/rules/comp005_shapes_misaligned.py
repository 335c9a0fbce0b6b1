"""COMP005: matrix dimensions are not aligned for the tensor cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.core import units
from paceline.explain.analysis.gains import at_most
from paceline.explain.analysis.loader_model import WORTH
from paceline.explain.analysis.mfu import number_format
from paceline.explain.analysis.profiler_window import ProductSize
from paceline.explain.analysis.run_analysis import RankAnalysis, RunAnalysis, matrix_share
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

_MULTIPLES: Mapping[str, int] = {"bf16": 8, "fp16": 8, "tf32": 4}  # number of elements in 16 bytes
_LEAST_SHARE = 0.1

PAGE = """
## What it means

Tensor cores load matrices in pieces of 16 bytes. If the length of a matrix row is not a multiple of 16 bytes, the GPU
needs smaller loads or a slower kernel. Typical examples are a vocabulary of 50,257 tokens, or a last layer with an odd
width.

## How it is detected

Paceline reports `shapes-misaligned` if the program multiplies matrices in bf16, fp16 or TF32, and if two conditions on
misaligned matrix products hold. A matrix product is misaligned if one of its dimensions is not a multiple of 16 bytes,
which are 8 elements in bf16 or fp16, and 4 elements in TF32. Misaligned matrix products must contain at least a tenth
of the FLOPs, counted over the sixteen sizes of matrix products with the most FLOPs. Misaligned matrix products must
also take at least 5% of step time. The limit of 16 bytes comes from NVIDIA's guide to matrix multiplication.

The gain of padding depends on the GPU and its libraries, and it was not measured. The expected gain is therefore
assumed: at most the time of the misaligned matrix products. Convolutions are not included, because cuDNN
pads them itself.

The page [devices](../reference/devices.md) lists the hardware on which the finding `shapes-misaligned` was tested.

## What helps

- `shapes.pad`: pad the dimension to the next multiple with rows that are never used. For example, extend a vocabulary
  of 50,257 tokens to 50,304.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding COMP005, or None if it does not apply."""
    rank = analysis.first
    multiple = _MULTIPLES.get(number_format(rank.record, rank.window) or "")
    if analysis.on_cpu or multiple is None or rank.window is None or rank.window.matrix_work is None:
        return None
    products = rank.window.matrix_work.products
    odd = [p for p in products if any(size % multiple for size in (p.m, p.n, p.k))]
    total = sum(rank.window.matrix_work.flops.values())
    part = sum(p.flops for p in odd) / total if total else 0.0
    share = (matrix_share(rank) or 0.0) * part
    if part < _LEAST_SHARE or share < WORTH:
        return None
    gain = at_most(share)
    return Finding(
        code="COMP005",
        name="shapes-misaligned",
        severity="info",
        confidence="low",
        time_share=share,
        gain=gain,
        ranks=[r.record.rank for r in analysis.ranks],
        evidence=_evidence(rank, odd, part, multiple),
        remedies=[
            Remedy(
                id="shapes.pad",
                safety="numeric",
                change=f"pad {_worst(odd, multiple)} to a multiple of {multiple}",
                gain=gain,
            )
        ],
        summary=f"{units.percent(part)} of the FLOPs in matrix products are in products with a dimension that is not "
        f"a multiple of {multiple}",
    )


def _worst(odd: Sequence[ProductSize], multiple: int) -> str:
    """Return text that names the unaligned dimension with the most FLOPs."""
    weight: dict[int, float] = {}
    for product in odd:
        for size in {product.m, product.n, product.k}:
            if size % multiple:
                weight[size] = weight.get(size, 0.0) + product.flops
    return f"the dimension of {max(weight, key=lambda size: weight[size]):,}"


def _evidence(rank: RankAnalysis, odd: Sequence[ProductSize], part: float, multiple: int) -> list[Evidence]:
    kind = number_format(rank.record, rank.window)
    found = [
        Evidence(
            text=f"{units.percent(part)} of the FLOPs in matrix products are in products with a dimension that is "
            f"not a multiple of {multiple} ({kind}, 1 step profiled)",
            value=part,
            unit="share of matrix work",
        )
    ]
    for product in sorted(odd, key=lambda p: -p.flops)[:3]:
        text = f"({product.m:,} x {product.k:,}) times ({product.k:,} x {product.n:,}), {product.count} times"
        found.append(Evidence(text=text, value=product.flops, unit="FLOP"))
    return found


RULE = Rule(code="COMP005", name="shapes-misaligned", page=PAGE, check=check)
