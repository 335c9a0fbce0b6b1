"""What does a rank weigh in a number that a model returns, such as its loss? Found out from calls, not guessed.

A number for all rows is held against sums of the parts' numbers, weighed by rows, by valid targets, or not at all.
Where several rules come as close, the next calls decide; what weighs alike in a call is one rule in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan

_FAR = 1e-6  # of the number: what is nearer than that cannot be told from rounding
_TIMES = 4.0  # by which the second best rule must be worse
_MOST_LOOKS = 16

Dealt = Mapping[str, Sequence[int]]


def weights(dealt: Dealt) -> dict[str, list[float]]:
    """Return what each rank may weigh, by the name of the rule; `dealt` says how many rows or targets each has."""
    ranks = len(next(iter(dealt.values())))
    found = {name: [each / max(1, sum(counts)) for each in counts] for name, counts in dealt.items()}
    return {**found, "sum": [1.0] * ranks}


def errors(dealt: Dealt, whole: float, parts: Sequence[float], near: float) -> dict[str, float]:
    """Return how far off each rule is, of the number; those that are farther off than `near` are left out."""
    found = {}
    for name, shares in weights(dealt).items():
        total = sum(part * share for part, share in zip(parts, shares, strict=True) if share)
        both_nan = isnan(total) and isnan(whole)
        off = 0.0 if both_nan else abs(total - whole) / max(abs(whole), 1e-6)
        if off <= near:
            found[name] = off
    return found


def alike(dealt: Dealt) -> tuple[int, ...]:
    """Return for each rule the first one that weighs alike: with others, another one may turn out to be right."""
    rules = list(weights(dealt).values())
    return tuple(next(place for place, one in enumerate(rules) if one == each) for each in rules)


def settled(dealt: Dealt, off: Mapping[str, float], looks: int) -> bool:
    """Say whether the best rule is so much better than all that weigh otherwise that it is the one."""
    if looks >= _MOST_LOOKS:
        return True
    rules, best = weights(dealt), min(off, key=lambda name: off[name])
    others = [value for name, value in off.items() if rules[name] != rules[best]]
    return all(value > max(_FAR, _TIMES * off[best]) for value in others)
