"""precision.tf32: fp32 matrices are multiplied in TF32."""

from __future__ import annotations

from paceline.tune.remedies import TunableRemedy, switch

PAGE = """
Products of fp32 matrices run on the tensor cores: inputs are rounded to 10 bits of mantissa (TF32), and sums stay in
fp32. `tune` proposes `precision.tf32` on a CUDA device of compute capability 8.0 or later, if fp32 matrix products take
a visible share of the time.

## Safety class

The safety class is numeric: the algorithm is the same, but inputs are rounded to TF32.

## What it sets

This remedy sets `precision.tf32 = true`.

## How it is confirmed

Paceline checks `precision.tf32` at the first optimizer step. Paceline records the setting as applied if the device
supports TF32, and if the program has not set another precision for matrix products.

## In the source

Call `torch.set_float32_matmul_precision("high")` before the first matrix product.
"""

REMEDY = TunableRemedy(
    id="precision.tf32",
    page=PAGE,
    candidates=switch(
        "precision.tf32",
        "precision.tf32",
        True,
        why="TF32 multiplies fp32 matrices on the tensor cores",
        when=lambda context: context.gain_of("precision.tf32") is not None,
    ),
)
