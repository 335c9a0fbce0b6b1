"""precision.fp16: the model computes in fp16 with loss scaling."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.tune.candidates import Candidate, DiagnosisContext
from paceline.tune.remedies import TunableRemedy

PAGE = """
Under autocast, matrix operations run in float16. `tune` proposes `precision.fp16` on CUDA devices that do not support
bfloat16 (compute capability 7). The loss is computed in fp32 outside autocast.

Small gradients would become zero in float16. Therefore, the loss is multiplied by a scale before each backward pass,
and the gradients are divided by this scale afterwards. Code that clips, logs or adds up gradients sees the unscaled
gradients. A step with NaN or infinite gradients is skipped, and the loss scale is halved. After 2,000 steps without NaN
or infinite gradients, the loss scale is doubled.

## Safety class

The safety class is numeric: the algorithm is the same, but values are rounded to fp16. The result of a trial reports
how many steps were skipped.

## What it sets

This remedy sets `precision.autocast = "fp16"`.

## How it is confirmed

Paceline records `precision.autocast` as applied when the forward pass of a model runs in fp16. The setting has no
effect if the program uses autocast or a `GradScaler` itself, or if parameters are sharded over ranks. After 24 skipped
steps in a row, Paceline reports that the setting does not work.

## In the source

Put `with torch.autocast("cuda", dtype=torch.float16):` around the forward pass, and create a `torch.amp.GradScaler`.
Call `scale` on the loss, `unscale_` before gradients are clipped, and `step` and `update` instead of
`optimizer.step()`.
"""


def _candidates(context: DiagnosisContext) -> Sequence[Candidate]:
    predicted = context.gain_of("precision.fp16")
    if predicted is None or context.setting("precision", "autocast"):
        return []
    return [
        Candidate(
            remedy="precision.fp16",
            recipe={"precision": {"autocast": "fp16"}},
            safety="numeric",
            predicted=predicted,
            why="this device multiplies fp16 matrices several times as fast and does not support bf16",
            aims=("time", "memory"),
        )
    ]


REMEDY = TunableRemedy(id="precision.fp16", page=PAGE, candidates=_candidates)
