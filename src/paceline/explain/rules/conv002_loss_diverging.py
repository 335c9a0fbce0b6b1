"""CONV002: the loss rises far above its first values."""

from __future__ import annotations

from paceline.explain.analysis.loss import single_objective
from paceline.explain.analysis.run_analysis import RunAnalysis
from paceline.explain.model import Evidence, Finding, LossCurve, Remedy
from paceline.explain.rules import Rule

_FAR = 3.0
_FAR_FOR_CERTAIN = 10.0
_FAR_IF_MOVING = 1000.0
_LEAST = 20

PAGE = """
## What it means

The loss rises instead of falling. The usual cause is a learning rate that is too high.

## How it is detected

Paceline compares losses only if a program has one objective: the same modules, the same optimizer and the same line of
the backward pass in at least 90% of the backward passes. For a GAN, or for tasks that take turns, Paceline makes no
statement about the loss.

Paceline reports `loss-diverging` if it recorded at least 20 losses, and if the median of the last tenth of the losses
is more than three times the median of the first tenth. The median of the last tenth must also be larger than 90% of the
losses in the first half. The severity is "critical" if the loss is at least ten times its first value and no loss is
negative, and "warning" otherwise: a weight or a curriculum that grows during training also raises a loss.

If most updates contain a forward pass without gradients, or several forward passes for one backward pass, the objective
moves (a target network, a teacher, a rollout). The loss of a healthy run may then rise, so Paceline requires a rise by
a factor of 1,000.

## What helps

- `optimizer.lower_lr`: lower the learning rate or use a warm-up.
- `optimizer.clip`: clip gradients.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding CONV002, or None if it does not apply."""
    loss, objective = analysis.loss, single_objective(analysis.first.record)
    if loss is None or objective is None or not _diverges(loss, _FAR if objective.fixed else _FAR_IF_MOVING):
        return None
    certain = objective.fixed and _rises(loss, _FAR_FOR_CERTAIN) and min(loss.values) >= 0
    text = (
        f"the loss rose from {loss.first:.4g} to {loss.last:.4g} (medians over the first and the last tenth of "
        f"{len(loss.values)} losses)"
    )
    return Finding(
        code="CONV002",
        name="loss-diverging",
        severity="critical" if certain else "warning",
        confidence="high" if certain else "medium",
        time_share=None,
        gain=None,
        ranks=[analysis.first.record.rank],
        evidence=[Evidence(text=text, value=loss.last, unit="loss")],
        remedies=[
            Remedy(id="optimizer.lower_lr", safety="semantic", change="lower the learning rate or use a warm-up"),
            Remedy(id="optimizer.clip", safety="semantic", change="clip gradients (torch.nn.utils.clip_grad_norm_)"),
        ],
        summary=f"the loss rose from {loss.first:.4g} to {loss.last:.4g}",
    )


def _diverges(loss: LossCurve, factor: float) -> bool:
    if loss.last is None or len(loss.values) < _LEAST or not loss.finite:
        return False
    early = sorted(loss.values[: len(loss.values) // 2])
    return _rises(loss, factor) and loss.last > early[int(0.9 * (len(early) - 1))]


def _rises(loss: LossCurve, factor: float) -> bool:
    return loss.first is not None and loss.last is not None and loss.last > factor * abs(loss.first)


RULE = Rule(code="CONV002", name="loss-diverging", page=PAGE, check=check)
