"""CONV002: the loss rises far above its first values."""

from __future__ import annotations

from paceline.explain.facts import Facts
from paceline.explain.model import Evidence, Finding, LossCurve, Remedy
from paceline.explain.rules import Rule

_FAR = 3.0
_LEAST = 20

PAGE = """
## What it means

The loss rises instead of falling. The usual cause is a learning rate that is too high.

## How it is detected

Paceline reports `loss-diverging` if it recorded at least 20 losses, and if the median of the last tenth of the losses
is more than three times the median of the first tenth. The median of the last tenth must also be larger than 90% of the
losses in the first half.

## What helps

- `optimizer.lower_lr`: lower the learning rate or use a warm-up.
- `optimizer.clip`: clip gradients.
"""


def check(facts: Facts) -> Finding | None:
    """Return finding CONV002, or None if it does not apply."""
    loss = facts.loss
    if loss is None or not _diverges(loss):
        return None
    text = (
        f"the loss rose from {loss.first:.4g} to {loss.last:.4g} (medians over the first and the last tenth of "
        f"{len(loss.values)} losses)"
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
            Remedy(id="optimizer.lower_lr", safety="semantic", change="lower the learning rate or use a warm-up"),
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
