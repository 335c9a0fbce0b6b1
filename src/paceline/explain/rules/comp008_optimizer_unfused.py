"""COMP008: does the optimizer take a visible share, tensor by tensor?"""

from __future__ import annotations

from paceline import units
from paceline.explain import words
from paceline.explain.facts import Facts, gain_of_removing
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule
from paceline.record.run import JsonObject

_FUSABLE = ("Adam", "AdamW", "SGD", "Adagrad")
_LEAST_TENSORS, _LEAST_NUMBERS = 8, 100_000

PAGE = """
## What it means

The optimizer walks over the parameters one tensor at a time (or one operation at a time), and that shows in the
step.

## How it is decided

The optimizer phase (the step, zeroing and clipping gradients) takes at least 12 % of step time, and the
optimizer that takes it runs neither fused nor foreach kernels. On a CPU neither is the default. With fewer than 8
tensors and fewer than 100,000 numbers there is nothing to fuse. Nothing is said of optimizers that are not torch's.

## What helps

`optimizer.fused`: `fused=True` updates all parameters in one pass where the optimizer has it (Adam, AdamW, SGD,
Adagrad; on a CPU since torch 2.4). `optimizer.foreach`: the next best. `optimizer.less_often`: accumulate
gradients over more micro-steps (another batch size).
"""


def check(facts: Facts) -> Finding | None:
    """Decide COMP008."""
    share = facts.shares["optimizer"]
    rank = facts.first
    used = rank.record.summary.get("optimizers", ())
    plain = [o for o in used if not o.get("fused") and not _foreach(o)]
    if share < 0.12 or not plain or not all(o.get("of_torch", True) for o in used):
        return None
    biggest = max(plain, key=lambda o: o.get("parameters", 0))
    if biggest["tensors"] < _LEAST_TENSORS and biggest["parameters"] < _LEAST_NUMBERS:
        return None
    text = (
        f"{biggest['class']} updates {biggest['tensors']:,} tensors with {biggest['parameters']:,} "
        f"numbers, one operation at a time"
    )
    gain = gain_of_removing(share, 0.25, 0.9)
    return Finding(
        code="COMP008",
        name="optimizer-unfused",
        severity="warning",
        confidence="high" if biggest["class"] in _FUSABLE else "medium",
        time_share=share,
        gain=gain,
        ranks=[r.record.rank for r in facts.ranks],
        evidence=[
            words.share_of_step(share, "the optimizer"),
            Evidence(text=text, value=float(biggest["tensors"]), unit="tensors"),
        ],
        remedies=_remedies(biggest, share),
        summary=f"the optimizer takes {units.percent(share)} of the time and is not fused",
    )


def _foreach(optimizer: JsonObject) -> bool:
    """Say whether an optimizer uses multi-tensor kernels: asked for, or by default on CUDA."""
    return bool(optimizer.get("foreach")) or (optimizer.get("foreach") is None and optimizer.get("device") == "cuda")


def _remedies(optimizer: JsonObject, share: float) -> list[Remedy]:
    name = optimizer["class"]
    fused = Remedy(
        id="optimizer.fused", safety="numeric", change=f"{name}(…, fused=True)", gain=gain_of_removing(share, 0.25, 0.9)
    )
    foreach = Remedy(
        id="optimizer.foreach",
        safety="numeric",
        change=f"{name}(…, foreach=True)",
        gain=gain_of_removing(share, 0.0, 0.4),
    )
    return [fused, foreach] if name in _FUSABLE else [foreach]


RULE = Rule(code="COMP008", name="optimizer-unfused", page=PAGE, check=check)
