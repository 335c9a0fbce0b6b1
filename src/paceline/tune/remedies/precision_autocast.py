"""precision.autocast: the model computes in bf16."""

from __future__ import annotations

from paceline.explain.analysis.mfu import computes_in_16_bits
from paceline.tune.candidates import DiagnosisContext, capability, operator_share
from paceline.tune.remedies import TunableRemedy, at_most, switch

PAGE = """
Under autocast, matrix operations run in bfloat16. In bfloat16, matrix operations need half as many bytes, and run
several times as fast on hardware that supports bfloat16. The loss is computed in fp32 outside autocast. Parameters and
optimizer state stay in fp32.

`tune` does not propose this remedy for a program that computes in bf16 or fp16 already.

On a CPU with bfloat16 instructions (AVX-512 BF16, AMX, or Arm BF16), `tune` expects matrix operations to run at most
three times as fast as in fp32. On other CPUs, the gain is unknown before the trial.

## Safety class

The safety class is numeric: the algorithm is the same, but values are rounded to bf16.

## What it sets

This remedy sets `precision.autocast = "bf16"`.

## How it is confirmed

Paceline records `precision.autocast` as applied when the forward pass of a model runs in bf16. The setting has no
effect if the program uses autocast itself.

## In the source

Put `with torch.autocast("cuda", dtype=torch.bfloat16):` around the forward pass (`"cpu"` instead of `"cuda"` on a CPU).
Compute the loss outside autocast, on `output.float()`.
"""

_MULTIPLY = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}  # CPU flags in /proc/cpuinfo
# Parts of the names of matrix operators.
_MATRIX_WORK = ("addmm", "::mm", "bmm", "conv", "attention", "linear", "rnn", "lstm", "gru")
_TIMES = 3.0  # largest speed-up of bf16: twice the products per instruction and half the bytes


def _most(context: DiagnosisContext) -> float | None:
    """Return the largest possible speed-up, computed from the share of matrix operations.

    None on CUDA, if the share is unknown, or if the CPU has no bf16 instructions.
    """
    share = operator_share(context, *_MATRIX_WORK)
    if context.on_cuda or share is None or not context.cpu_flags & _MULTIPLY:
        return None
    return 1 / (1 - share * (1 - 1 / _TIMES))


REMEDY = TunableRemedy(
    id="precision.autocast",
    page=PAGE,
    candidates=at_most(
        switch(
            "precision.autocast",
            "precision.autocast",
            "bf16",
            why="the model computes in bf16, and the loss is computed in fp32",
            when=lambda context: (
                not computes_in_16_bits(context.facts.first.record)
                and (not context.on_cuda or capability(context) >= 8.0)
            ),
        ),
        _most,
    ),
)
