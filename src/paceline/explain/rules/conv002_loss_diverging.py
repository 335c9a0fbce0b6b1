"""CONV002: does the loss rise far above where it began?"""

from __future__ import annotations

from paceline.explain.facts import Facts
from paceline.explain.model import Evidence, Finding, LossCurve, Remedy
from paceline.explain.rules import Rule

_FAR = 3.0
_LEAST = 20

PAGE = """
## What it means

The loss climbs instead of falling: training is undoing itself, usually because the learning rate is too high.

## How it is decided

At least 20 losses; the median of the last tenth is at least three times that of the first tenth, and above nine
tenths of all losses of the first half.

## What helps

`optimizer.lower_lr`: a lower learning rate, or a warm-up. `optimizer.clip`: clip gradients.
"""


def check(facts: Facts) -> Finding | None:
    """Decide CONV002."""
    loss = facts.loss
    if loss is None or not _diverges(loss):
        return None
    text = (
        f"the loss began at {loss.first:.4g} and ended at {loss.last:.4g} (medians over the first and last "
        f"tenth, {len(loss.values)} points)"
    )
    return Finding(
        code="CONV002",
        name="loss-diverging",
        severity="critical",
        confidence="high",
        time_share=None,
        gain=None,
        ranks=[facts.first.record.rank],
        evidence=[Evidence(text=text, value=loss.last, unit="loss")],
        remedies=[
            Remedy(id="optimizer.lower_lr", safety="semantic", change="lower the learning rate, or warm it up"),
            Remedy(id="optimizer.clip", safety="semantic", change="clip gradients (torch.nn.utils.clip_grad_norm_)"),
        ],
        summary=f"the loss rose from {loss.first:.4g} to {loss.last:.4g}",
    )


def _diverges(loss: LossCurve) -> bool:
    if loss.first is None or loss.last is None or len(loss.values) < _LEAST or not loss.finite:
        return False
    early = sorted(loss.values[: len(loss.values) // 2])
    return loss.last > _FAR * abs(loss.first) and loss.last > early[int(0.9 * (len(early) - 1))]


RULE = Rule(code="CONV002", name="loss-diverging", page=PAGE, check=check)
