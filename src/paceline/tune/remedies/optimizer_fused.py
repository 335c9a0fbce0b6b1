"""optimizer.fused: one kernel updates all parameters."""

from __future__ import annotations

from paceline.tune.candidates import DiagnosisContext
from paceline.tune.remedies import TunableRemedy, at_most, switch

PAGE = """
With `fused=True`, an optimizer of torch updates all parameters in one kernel. `tune` proposes this change if the
optimizer supports `fused`, and if the program passes neither `fused` nor `foreach`. Paceline does not apply it where
torch refuses it: with sparse gradients, parameters that are not floating-point numbers, and `differentiable=True`.

## Safety class

The safety class is numeric: the algorithm is the same, but results are rounded differently.

## What it sets

This remedy sets `optimizer.fused = true`.

## How it is confirmed

Paceline records `optimizer.fused` as applied when an optimizer of torch is created with `fused=True`.

## In the source

Pass `fused=True` to the call that creates the optimizer.
"""


def _open(context: DiagnosisContext) -> bool:
    """Return whether an optimizer was created with neither ``fused`` nor ``foreach``, or no optimizer is known."""
    known = context.facts.first.record.summary.get("optimizers", ())
    chosen = known and all(one.get("fused") is not None or one.get("foreach") is not None for one in known)
    return not chosen and not context.setting("optimizer", "foreach")


def _most(context: DiagnosisContext) -> float:
    """Return the speed-up that would result if the optimizer took no time."""
    return 1 / max(0.1, 1 - context.facts.shares["optimizer"])


REMEDY = TunableRemedy(
    id="optimizer.fused",
    page=PAGE,
    candidates=at_most(
        switch(
            "optimizer.fused",
            "optimizer.fused",
            True,
            why="one kernel updates all parameters",
            when=_open,
        ),
        _most,
    ),
)
