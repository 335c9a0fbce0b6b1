"""precision.fp16: models compute in fp16, with the loss scaled for backward."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

PAGE = """
Matrix work in float16 under autocast, for CUDA devices that have no bfloat16 (compute capability 7). The loss is
computed outside of it, in single precision. So that small gradients do not vanish, each backward starts from the loss
times a scale, and ends with gradients divided by it: what clips, logs or adds up gradients sees them as they are. A
step with gradients that are not finite is skipped, and the scale halved; it doubles after 2,000 good steps.

## Safety class

Numeric: the same algorithm, other rounding. Skipped steps are counted, and the proof says how many there were.

## What it sets

`precision.autocast = "fp16"`.

## How it is confirmed

A model's forward ran in fp16. Not in force where the program uses autocast or a `GradScaler` itself, where parameters
are sharded over ranks, or when 24 steps in a row had to be skipped.

## In the source

`with torch.autocast("cuda", dtype=torch.float16):` around the forward, and a `torch.amp.GradScaler` around the loss and
the optimizer: `scale`, `unscale_` before gradients are clipped, `step`, `update`.
"""


def _candidates(situation: Situation) -> Sequence[Candidate]:
    predicted = situation.gain_of("precision.fp16")
    if predicted is None or situation.setting("precision", "autocast"):
        return []
    return [
        Candidate(
            remedy="precision.fp16",
            recipe={"precision": {"autocast": "fp16"}},
            safety="numeric",
            predicted=predicted,
            why="this device multiplies fp16 several times as fast, and has no bf16",
            aims=("time", "memory"),
        )
    ]


REMEDY = Remedy(id="precision.fp16", page=PAGE, candidates=_candidates)
