"""Which objective does a rank minimize, and how often do its modules exchange gradients?

An objective is identified by the modules, the optimizer and the line of the backward pass. A loss is compared over
time only if a rank has one objective: the losses of a GAN's two networks pull against each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.record.run import JsonObject, Rank

_MOST_OTHER = 0.1  # share of backward passes of another kind that one objective may have beside it
_MOVING = 0.5  # share of updates with gradient-free forward passes, from which targets come from a model
_LEAST_UPDATES = 8


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The one objective of a rank.

    Attributes:
        modules: The classes of the modules that run forward for it.
        line: The line of the backward pass; None if no stack was taken.
        fixed: Whether each update has one forward pass with gradients for each backward pass, and none without. A
            target network, a teacher, or a model that makes its own targets moves the objective, so its loss may rise.
    """

    modules: Sequence[str]
    line: str | None
    fixed: bool


@dataclass(frozen=True, kw_only=True)
class Exchanges:
    """How often one module exchanged its gradients for one optimizer update."""

    module: str
    updates: int
    per_update: float


def single_objective(rank: Rank) -> Objective | None:
    """Return the objective of a rank; None if the rank has several, or if the record does not say."""
    told: JsonObject = rank.summary.get("training") or {}
    entries = told.get("objectives") or ()
    counts: Counter[tuple[object, ...]] = Counter()
    for one in entries:
        counts[(tuple(one["module_ids"]), one["optimizer"])] += int(one["backwards"])
    if not counts or not told.get("updates"):
        return None
    kind, most = counts.most_common(1)[0]
    own = [one for one in entries if (tuple(one["module_ids"]), one["optimizer"]) == kind]
    lines = {tuple(one["lines"]) for one in own if one["lines"]}
    if most < (1 - _MOST_OTHER) * int(told["backwards"]) or len(lines) > 1:
        return None
    forwards, backwards = int(told["forwards"]), max(1, int(told["backwards"]))
    free = int(told["updates_with_gradient_free_forwards"]) / int(told["updates"])
    line = next((one[0] for one in lines if one), None)
    return Objective(modules=own[0]["modules"], line=line, fixed=forwards <= 1.1 * backwards and free < _MOVING)


def exchanges_of(rank: Rank) -> Exchanges | None:
    """Return the exchanges of the module that exchanges its gradients most often for one update; None: unknown."""
    told: JsonObject = rank.summary.get("training") or {}
    found = [
        Exchanges(module=one["module"], updates=one["updates"], per_update=one["exchanges"] / one["updates"])
        for one in told.get("exchanges") or ()
        if one["updates"] >= _LEAST_UPDATES
    ]
    return max(found, key=lambda one: one.per_update, default=None)
