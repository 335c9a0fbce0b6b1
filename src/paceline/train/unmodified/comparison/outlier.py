"""Compares one more call, in which one row has large values: does it change the results of other rows?

A model can depend on other rows only when a value is out of the ordinary, such as one that divides a batch by its
largest value if that is above 1. The first batch of a program often has no such row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from paceline.train.unmodified.call import Call, sizes, times
from paceline.train.unmodified.comparison.tolerance import Tolerance
from paceline.train.unmodified.comparison.trial_call import TrialCalls
from paceline.train.unmodified.exchange import Exchange
from paceline.train.unmodified.joins import ROWS, Way

Mode = Callable[[tuple[int, int]], Any]

_FACTOR = 8.0


def why(exchange: Exchange, calls: TrialCalls, call: Call, way: Way, mode: Mode) -> str:
    """Return why a model cannot be given parts of a batch, if a row with large values changes other rows; else "".

    All ranks must call this function. Outputs with one row for each sample are compared.

    Args:
        exchange: The exchanges with the other ranks.
        calls: Makes trial calls.
        call: The call, with the inputs that are cut.
        way: How its results are combined.
        mode: Returns the context of a call with some rows, which replays random numbers.
    """
    torch = exchange.torch
    cut = [place for place, is_cut in enumerate(call.is_cut) if is_cut and call.leaves[place].is_floating_point()]
    if not cut or ROWS not in way.joins:
        return ""
    leaves = list(call.leaves)
    for place in cut:
        leaves[place] = leaves[place].detach().clone()
        leaves[place][0] *= _FACTOR
    found = _difference(torch, calls, replace(call, leaves=leaves), way, mode)
    return next((each for each in exchange.objects(found) if each), "")


def _difference(torch: Any, calls: TrialCalls, call: Call, way: Way, mode: Mode) -> str:
    part = call.bounds()
    try:
        whole = calls.forward(call, None, mode((0, call.rows)))
        own = calls.forward(call, part, mode(part))
        low = any(leaf.dtype.itemsize < 4 for leaf in own.leaves if isinstance(leaf, torch.Tensor))
        moved = calls.forward(call, part, mode(part), 1 << 16 if low else 1)
    except Exception:  # a model may refuse large values
        return ""
    for place, join in enumerate(way.joins):
        if join == ROWS and not _is_near(torch, call, low, [trial.leaves[place] for trial in (whole, own, moved)]):
            return f"its output {place} depends on other samples if one sample has large values"
    return ""


def _is_near(torch: Any, call: Call, low: bool, values: Sequence[Any]) -> bool:
    whole, own, moved = values
    by = times(sizes(call.rows, call.spread.ranks), call.rows, whole.shape[0]) or 1
    first, end = (by * bound for bound in call.bounds())
    return own.shape != whole[first:end].shape or Tolerance(low).near(torch, own, whole[first:end], moved)
