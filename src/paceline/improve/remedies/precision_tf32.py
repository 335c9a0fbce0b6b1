"""precision.tf32: float32 matrices are multiplied in TF32."""

from __future__ import annotations

from paceline.improve.remedies import Remedy, switch

PAGE = """
Products of float32 matrices run on the tensor cores: operands are rounded to 10 bits of mantissa, sums stay float32.
Proposed where a CUDA device of compute capability 8.0 or later spends its time on float32 matrix products.

## Safety class

Numeric: the same algorithm, other rounding.

## What it sets

`precision.tf32 = true`.

## How it is confirmed

At the first optimizer step the device has TF32, and the program has not asked for another precision itself.

## In the source

`torch.set_float32_matmul_precision("high")` before the first product.
"""

REMEDY = Remedy(
    id="precision.tf32",
    page=PAGE,
    candidates=switch(
        "precision.tf32",
        "precision.tf32",
        True,
        gain_of="precision.tf32",
        why="float32 matrices are multiplied on the tensor cores",
        when=lambda situation: situation.gain_of("precision.tf32") is not None,
    ),
)
