"""CONV001: is the loss still a number?"""

from __future__ import annotations

import math

from paceline.explain.facts import Facts
from paceline.explain.model import Evidence, Finding, LossCurve, Remedy
from paceline.explain.rules import Rule

PAGE = """
## What it means

The loss became NaN or infinite. What is computed after that is usually worth nothing, however fast it is.

## How it is decided

The tensor that `backward` was called on (before loss scaling) is read at every step, on a CPU directly, on a
GPU through an asynchronous copy. The first step at which it is not finite is named. With fp16 loss scaling
single infinite losses are part of the method and are not reported if later ones are finite.

## What helps

`loss.find_source`: run those steps again under `torch.autograd.set_detect_anomaly(True)`. `optimizer.clip`:
clip gradients. `optimizer.lower_lr`: a lower learning rate or a longer warm-up.
"""


def check(facts: Facts) -> Finding | None:
    """Decide CONV001."""
    loss = facts.loss
    if loss is None or loss.first_bad_step is None or _recovered(loss):
        return None
    bad = loss.first_bad_step
    before = [v for s, v in zip(loss.steps, loss.values, strict=True) if s < bad]
    text = (
        f"the loss was {before[-1]:.4g} just before step {bad}, and then no finite number"
        if before
        else f"the loss was not finite from step {bad} on"
    )
    return Finding(
        code="CONV001",
        name="loss-not-finite",
        severity="critical",
        confidence="high",
        time_share=None,
        gain=None,
        ranks=[facts.first.record.rank],
        evidence=[Evidence(text=text, value=float(bad), unit="step")],
        remedies=[
            Remedy(
                id="loss.find_source",
                safety="exact",
                change=f"run step {bad} under torch.autograd.set_detect_anomaly(True)",
            ),
            Remedy(id="optimizer.clip", safety="semantic", change="clip gradients (torch.nn.utils.clip_grad_norm_)"),
            Remedy(id="optimizer.lower_lr", safety="semantic", change="lower the learning rate, or warm it up"),
        ],
        summary=f"the loss is NaN or infinite from step {bad} on",
    )


def _recovered(loss: LossCurve) -> bool:
    """Say whether only single losses were not finite, as loss scaling brings with it, and the last ones are."""
    bad = sum(not math.isfinite(v) for v in loss.values)
    return loss.last is not None and bad <= max(1, len(loss.values) // 50)


RULE = Rule(code="CONV001", name="loss-not-finite", page=PAGE, check=check)
