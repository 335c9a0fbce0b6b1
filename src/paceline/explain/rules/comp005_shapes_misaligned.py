"""COMP005: do matrices have sizes that the tensor cores cannot load well?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline import units
from paceline.explain.facts import Facts, RankFacts, gain_of_removing
from paceline.explain.matrix import matrix_share
from paceline.explain.mfu import number_format
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule
from paceline.explain.supply import WORTH
from paceline.explain.window import Product

_MULTIPLES: Mapping[str, int] = {"bf16": 8, "fp16": 8, "tf32": 4}  # elements in 16 bytes
_LEAST_SHARE = 0.1

PAGE = """
## What it means

Tensor cores read matrices in pieces of 16 bytes. A matrix whose rows are not a whole number of pieces long is
read in smaller ones, or by a slower kernel. Typical cases are a vocabulary of 50,257 words or a last layer of
odd width.

## How it is decided

Matrices are multiplied in bf16, fp16 or TF32. Of the operations of the profiled step's largest sixteen kinds of
product, at least a tenth are in products with a dimension that is no multiple of 16 bytes (8 elements of bf16
or fp16, 4 of TF32; NVIDIA's guide to matrix multiplication), and their part of the device's time in matrix work
is at least 5 % of a step, the share from which on a finding is made. What padding gains depends on card and
library and was not measured by us: the gain goes from nothing to half of that time. Convolutions do not count:
cuDNN chooses and pads for them in ways that shapes do not tell. No GPU has been seen by the authors.

## What helps

`shapes.pad`: pad the dimension to the next multiple (a vocabulary of 50,257 to 50,304), with rows that are
never used.
"""


def check(facts: Facts) -> Finding | None:
    """Decide COMP005."""
    rank = facts.first
    multiple = _MULTIPLES.get(number_format(rank.record, rank.window) or "")
    if facts.on_cpu or multiple is None or rank.window is None or rank.window.matrix_work is None:
        return None
    products = rank.window.matrix_work.products
    odd = [p for p in products if _is_odd(p, multiple)]
    total = sum(rank.window.matrix_work.flops.values())
    part = sum(p.flops for p in odd) / total if total else 0.0
    share = (matrix_share(rank) or 0.0) * part
    if part < _LEAST_SHARE or share < WORTH:
        return None
    gain = gain_of_removing(share, 0.0, 0.5)
    return Finding(
        code="COMP005",
        name="shapes-misaligned",
        severity="info",
        confidence="low",
        time_share=share,
        gain=gain,
        ranks=[r.record.rank for r in facts.ranks],
        evidence=_evidence(rank, odd, part, multiple),
        remedies=[
            Remedy(
                id="shapes.pad",
                safety="numeric",
                change=f"pad {_worst(odd, multiple)} to a multiple of {multiple}",
                gain=gain,
            )
        ],
        summary=f"{units.percent(part)} of matrix work has a dimension that is no multiple of {multiple}",
    )


def _is_odd(product: Product, multiple: int) -> bool:
    return any(size % multiple for size in (product.m, product.n, product.k))


def _worst(odd: Sequence[Product], multiple: int) -> str:
    """Name the odd dimension on which most work hangs."""
    weight: dict[int, float] = {}
    for product in odd:
        for size in {product.m, product.n, product.k}:
            if size % multiple:
                weight[size] = weight.get(size, 0.0) + product.flops
    return f"the dimension of {max(weight, key=lambda size: weight[size]):,}"


def _evidence(rank: RankFacts, odd: Sequence[Product], part: float, multiple: int) -> list[Evidence]:
    kind = number_format(rank.record, rank.window)
    found = [
        Evidence(
            text=f"{units.percent(part)} of matrix work is in products with a dimension that is no multiple of "
            f"{multiple} ({kind}, 1 step profiled)",
            value=part,
            unit="share of matrix work",
        )
    ]
    for product in sorted(odd, key=lambda p: -p.flops)[:3]:
        text = f"({product.m:,} x {product.k:,}) times ({product.k:,} x {product.n:,}), {product.count} times"
        found.append(Evidence(text=text, value=product.flops, unit="FLOP"))
    return found


RULE = Rule(code="COMP005", name="shapes-misaligned", page=PAGE, check=check)
