"""CONV001: the loss is NaN or infinite."""

from __future__ import annotations

import math

from paceline.explain.analysis.run_analysis import RunAnalysis
from paceline.explain.model import Evidence, Finding, LossCurve, Remedy
from paceline.explain.rules import Rule

PAGE = """
## What it means

The loss became NaN or infinite. All later training steps are usually useless.

## How it is detected

In every step, Paceline reads the loss, which is the tensor on which the program calls `backward`. If the program scales
its loss, Paceline reads the loss before scaling. On a GPU, Paceline copies the value asynchronously. The finding names
the first step with a NaN or infinite loss. With fp16 loss scaling, single infinite losses are normal, so Paceline does
not report them if later losses are finite.

## What helps

- `loss.detect_anomaly`: run the steps around the first NaN again under `torch.autograd.set_detect_anomaly(True)`.
- `optimizer.clip`: clip gradients.
- `optimizer.lower_lr`: lower the learning rate or use a longer warm-up.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding CONV001, or None if it does not apply."""
    loss = analysis.loss
    if loss is None or loss.first_bad_step is None or _recovered(loss):
        return None
    bad = loss.first_bad_step
    before = [v for s, v in zip(loss.steps, loss.values, strict=True) if s < bad]
    text = (
        f"the loss was {before[-1]:.4g} before step {bad}, and not finite from step {bad} on"
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
        ranks=[analysis.first.record.rank],
        evidence=[Evidence(text=text, value=float(bad), unit="step")],
        remedies=[
            Remedy(
                id="loss.detect_anomaly",
                safety="exact",
                change=f"run step {bad} again under torch.autograd.set_detect_anomaly(True)",
            ),
            Remedy(id="optimizer.clip", safety="semantic", change="clip gradients (torch.nn.utils.clip_grad_norm_)"),
            Remedy(id="optimizer.lower_lr", safety="semantic", change="lower the learning rate or use a warm-up"),
        ],
        summary=f"the loss is NaN or infinite from step {bad} on",
    )


def _recovered(loss: LossCurve) -> bool:
    """Return whether only a few losses were NaN or infinite, as with loss scaling, and the last losses are finite."""
    bad = sum(not math.isfinite(v) for v in loss.values)
    return loss.last is not None and bad <= max(1, len(loss.values) // 50)


RULE = Rule(code="CONV001", name="loss-not-finite", page=PAGE, check=check)
