"""optimizer.foreach: the optimizer updates many tensors at a time."""

from __future__ import annotations

from paceline.tune.candidates import DiagnosisContext
from paceline.tune.remedies import TunableRemedy, switch

PAGE = """
With `foreach=True`, an optimizer of torch runs each operation on many tensors at a time. `tune` proposes
`optimizer.foreach` if the optimizer takes a visible share of step time and updates one tensor at a time, and if the
program passes neither `fused` nor `foreach`. If the optimizer supports `fused`, `tune` tries `optimizer.fused` before
`optimizer.foreach`. On a CUDA device, torch uses `foreach` by default.

## Safety class

The safety class is numeric: the algorithm is the same, but results are rounded differently.

## What it sets

This remedy sets `optimizer.foreach = true`.

## How it is confirmed

Paceline records `optimizer.foreach` as applied when an optimizer of torch is created with `foreach=True`.

## In the source

Pass `foreach=True` to the call that creates the optimizer.
"""


def _worth_it(context: DiagnosisContext) -> bool:
    return context.gain_of("optimizer.foreach") is not None and not context.setting("optimizer", "fused")


REMEDY = TunableRemedy(
    id="optimizer.foreach",
    page=PAGE,
    candidates=switch(
        "optimizer.foreach",
        "optimizer.foreach",
        True,
        why="each operation updates many parameters at a time",
        when=_worth_it,
    ),
)
