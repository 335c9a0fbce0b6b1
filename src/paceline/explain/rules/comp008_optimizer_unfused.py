"""COMP008: the optimizer takes a visible share and updates one tensor at a time."""

from __future__ import annotations

from paceline.core import units
from paceline.explain import words
from paceline.explain.analysis.gains import at_most
from paceline.explain.analysis.run_analysis import RunAnalysis
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule
from paceline.record.run import JsonObject

_FUSABLE = ("Adam", "AdamW", "SGD", "Adagrad")
_WORTH = 0.15  # share of step time: on a CPU, fused Adam saved a third of the optimizer's time (measured: 1.05x at 13%)
_LEAST_TENSORS, _LEAST_NUMBERS = 8, 100_000

PAGE = """
## What it means

The optimizer updates the parameters one tensor at a time, and these updates take a visible share of step time.

## How it is detected

Paceline reports `optimizer-unfused` if the optimizer phase (updating the parameters, zeroing and clipping gradients)
takes at least 15% of step time, and if the optimizer uses neither fused nor foreach kernels. On a CPU, torch uses
neither fused nor foreach kernels by default. Paceline does not report `optimizer-unfused` for optimizers that are not
part of torch. Paceline also does not report it if the model has fewer than 8 parameter tensors with fewer than 100,000
elements in total.

## What helps

- `optimizer.fused`: `fused=True` updates all parameters in one kernel (Adam, AdamW, SGD, Adagrad; on a CPU since torch
  2.4).
- `optimizer.foreach`: `foreach=True` updates several tensors per kernel, and also exists for optimizers without a fused
  kernel.
- `batch.accumulate`: with gradient accumulation, the optimizer runs fewer times for the same number of samples. The
  effective batch size grows.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding COMP008, or None if it does not apply."""
    share = analysis.shares["optimizer"]
    rank = analysis.first
    used = rank.record.summary.get("optimizers", ())
    plain = [o for o in used if not o.get("fused") and not _foreach(o)]
    if share < _WORTH or not plain or not all(o.get("of_torch", True) for o in used):
        return None
    biggest = max(plain, key=lambda o: o.get("parameters", 0))
    if biggest["tensors"] < _LEAST_TENSORS and biggest["parameters"] < _LEAST_NUMBERS:
        return None
    text = (
        f"{biggest['class']} updates {biggest['tensors']:,} tensors with {biggest['parameters']:,} "
        f"parameters one tensor at a time"
    )
    gain = at_most(share)
    return Finding(
        code="COMP008",
        name="optimizer-unfused",
        severity="warning",
        confidence="high" if biggest["class"] in _FUSABLE else "medium",
        time_share=share,
        gain=gain,
        ranks=[r.record.rank for r in analysis.ranks],
        evidence=[
            words.share_of_step(share, "the optimizer"),
            Evidence(text=text, value=float(biggest["tensors"]), unit="tensors"),
        ],
        remedies=_remedies(biggest, share),
        summary=f"the optimizer takes {units.percent(share)} of the time and updates one tensor at a time",
    )


def _foreach(optimizer: JsonObject) -> bool:
    """Return whether an optimizer uses multi-tensor (foreach) kernels, which are the default on CUDA."""
    return bool(optimizer.get("foreach")) or (optimizer.get("foreach") is None and optimizer.get("device") == "cuda")


def _remedies(optimizer: JsonObject, share: float) -> list[Remedy]:
    name = optimizer["class"]
    fused = Remedy(id="optimizer.fused", safety="numeric", change=f"{name}(…, fused=True)", gain=at_most(share))
    foreach = Remedy(
        id="optimizer.foreach",
        safety="numeric",
        change=f"{name}(…, foreach=True)",
        gain=at_most(share),
    )
    return [fused, foreach] if name in _FUSABLE else [foreach]


RULE = Rule(code="COMP008", name="optimizer-unfused", page=PAGE, check=check)
