"""The weight of each rank in a number that a model returns, such as its loss. The rule is measured, not guessed.

The number for the whole batch is compared with sums of the parts' numbers, weighted by rows, by valid targets, or not
at all. If several rules come equally close, later calls decide. Rules with equal weights in a call count as one.

A rank can have no valid target. The mean of its part is then undefined and has weight 0, or the model divides by
``max(1, count)``, as detectors do. Calls with such a rank are therefore of another kind than calls without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan

_FAR = 1e-6  # relative; smaller errors may be rounding
_TIMES = 4.0  # the factor by which the second best rule must be worse
_MOST_LOOKS = 16  # comparisons after which the best rule is taken

Dealt = Mapping[str, Sequence[float]]


def weights(dealt: Dealt) -> dict[str, list[float]]:
    """Return, for each rule, the weights of the ranks in a number such as the loss.

    Args:
        dealt: For each rule the count (rows, valid targets, entries of a mask) or the sum of each rank.

    Returns:
        For each rule the weight of each rank: its share of the count; with the rule ``sum``, 1. A count that is 0 on a
        rank has a second rule, in which each count is at least 1.
    """
    ranks = len(next(iter(dealt.values())))
    found = {name: [each / (sum(counts) or 1) for each in counts] for name, counts in dealt.items()}
    for name, counts in dealt.items():
        if 0 in counts:
            found[f"{name}, at least 1"] = [max(1.0, each) / max(1.0, sum(counts)) for each in counts]
    return {**found, "sum": [1.0] * ranks}


def errors(dealt: Dealt, whole: float, parts: Sequence[float], near: float) -> dict[str, float]:
    """Return the relative error of each weighting rule whose error is at most `near`.

    Args:
        dealt: For each rule the count of each rank.
        whole: The number for the whole batch.
        parts: The number of each rank's part.
        near: The largest relative error.
    """
    found = {}
    for name, shares in weights(dealt).items():
        total = sum(part * share for part, share in zip(parts, shares, strict=True) if share)
        both_nan = isnan(total) and isnan(whole)
        off = 0.0 if both_nan else abs(total - whole) / max(abs(whole), 1e-6)
        if off <= near:
            found[name] = off
    return found


def alike(dealt: Dealt) -> tuple[int, ...]:
    """Return a description of what a call can show about the weighting rules; calls of one kind have the same one.

    Returns:
        For each rule the index of the first rule with equal weights, because the call cannot tell these rules apart.
        Then for each count whether it is 0 on any rank.
    """
    rules = list(weights(dealt).values())
    first = (next(place for place, one in enumerate(rules) if one == each) for each in rules)
    return *first, *(0 in counts for counts in dealt.values())


def best(off: Mapping[str, float]) -> str:
    """Return the first of the weighting rules whose errors differ by no more than rounding from the smallest one.

    Args:
        off: For each rule its relative error, summed over the comparisons; likely rules come first.
    """
    limit = max(_FAR, _TIMES * min(off.values()))
    return next(name for name, value in off.items() if value <= limit)


def settled(dealt: Dealt, off: Mapping[str, float], looks: int) -> bool:
    """Return whether the best weighting rule is certain: each rule with other weights has a much larger error.

    Args:
        dealt: For each rule the count of each rank.
        off: For each rule its relative error, summed over the comparisons.
        looks: The number of comparisons.
    """
    if looks >= _MOST_LOOKS:
        return True
    rules, least = weights(dealt), min(off, key=lambda name: off[name])
    others = [value for name, value in off.items() if rules[name] != rules[least]]
    return all(value > max(_FAR, _TIMES * off[least]) for value in others)
