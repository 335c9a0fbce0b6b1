"""How the results of all ranks' parts of a call become those of the whole call.

A result of rows is joined. A number, such as the loss, is the mean over rows, their sum, or the mean over valid
targets. What is equal for all parts is taken as it is. `comparison` finds out which of these holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.train.unmodified import shares
from paceline.train.unmodified.call import Call
from paceline.train.unmodified.exchange import Exchange
from paceline.train.unmodified.later import Later
from paceline.train.unmodified.rows import sizes, times
from paceline.train.unmodified.snapshot import Place

OWN, ROWS = "own", "rows joined"


@dataclass
class Way:
    """How a call is split.

    Attributes:
        splits: False: each rank calls the model with all rows.
        is_cut: For each leaf of the call whether each rank has its rows of it.
        joins: For each output `OWN`, `ROWS`, or the name of the rule by which ranks weigh in a number.
        slots: Places beside the outputs in which the model leaves tensors, and how these go together.
        changes: Inputs that the model changes in place.
        draws: The model draws random numbers of torch.
        draws_for_all: It draws some that are for all rows.
        off: For each number how far off each rule was in all comparisons together.
        settled: The rule of each number is certain.
        looks: Comparisons that were made.
        calls: Calls since the first comparison.
        requests: How many comparisons ranks had asked for at the last one.
    """

    splits: bool = True
    is_cut: tuple[bool, ...] = ()
    joins: list[str] = field(default_factory=list)
    slots: list[tuple[Place, str]] = field(default_factory=list)
    changes: list[int] = field(default_factory=list)
    draws: bool = False
    draws_for_all: bool = False
    off: dict[Any, dict[str, float]] = field(default_factory=dict)
    settled: bool = True
    looks: int = 1
    calls: int = 0
    requests: int = 0


def weighs_nothing(call: Call, way: Way) -> bool:
    """Return whether a rank has nothing that counts in a number, and so no number: all of its targets are left out."""
    rules = {join for join in (*way.joins, *(join for _, join in way.slots)) if join.startswith("targets")}
    return bool(rules) and any(not share for rule in rules for share in shares.weights(call.shares())[rule])


def together(exchange: Exchange, call: Call, way: Way, result: Any) -> Any:
    """Put the outputs of all ranks together, and leave in slots what is put together when it is read."""
    torch, pytree = exchange.torch, exchange.torch.utils._pytree
    leaves, spec = pytree.tree_flatten(result)
    if len(leaves) != len(way.joins):
        call.spread.refuse(
            f"{call.name} returned {len(leaves)} values, but {len(way.joins)} values in an earlier call of this kind; "
            "return the same structure in each call, or write the loop with paceline.train"
        )
    if way.draws_for_all:
        _check_shapes(exchange, call, leaves)
    weigh = _Weigh(exchange, call)
    for place, join in way.slots:
        _leave_for_later(torch, weigh, place, join)
    as_it_is = (OWN, ROWS) if call.spread.loss_only else (OWN,)
    found = [
        weigh.whole(leaf, join) if isinstance(leaf, torch.Tensor) and join not in as_it_is else leaf
        for leaf, join in zip(leaves, way.joins, strict=True)
    ]
    return pytree.tree_unflatten(found, spec)


class _Weigh:
    """Puts the results of one call together."""

    def __init__(self, exchange: Exchange, call: Call) -> None:
        self._exchange, self._call, self.groups = exchange, call, exchange.groups

    def whole(self, leaf: Any, join: str) -> Any:
        """Return the whole of which a rank has a part."""
        if join == ROWS:
            return self._exchange.whole(leaf, _dealt(self._call, leaf))
        share = shares.weights(self._call.shares())[join][self._call.spread.rank]
        return self._exchange.mean(leaf, share)

    def later(self, leaf: Any, join: str) -> Any:
        """Return the whole of a tensor that the model has left behind, when the program reads it."""
        spread = self._call.spread
        if spread.nested:
            spread.refuse(
                f"{self._call.name} reads an attribute that an earlier call has set, and each rank has only a part of "
                "it; write the loop with paceline.train"
            )
        groups, self._exchange.groups = self._exchange.groups, self.groups
        try:
            return self.whole(leaf, join)
        finally:
            self._exchange.groups = groups


def _leave_for_later(torch: Any, weigh: _Weigh, place: Place, join: str) -> None:
    place = place.at_end()
    try:
        value = place.get()
    except LookupError:
        return
    if type(value) is not Later and isinstance(value, torch.Tensor):
        place.set(Later(lambda: weigh.later(value, join)))


def _dealt(call: Call, leaf: Any) -> list[int]:
    parts = sizes(call.rows, call.spread.ranks)
    own = parts[call.spread.rank]
    by = times(parts, own, leaf.shape[0])
    if by is None:
        call.spread.refuse(f"{call.name} returned {leaf.shape[0]} samples for {own} samples, unlike in earlier calls")
    return [by * size for size in parts]


def _check_shapes(exchange: Exchange, call: Call, leaves: Sequence[Any]) -> None:
    """Refuse results that a random number for all rows gives another shape on each rank."""
    shapes = [list(leaf.shape[1:]) for leaf in leaves if isinstance(leaf, exchange.torch.Tensor)]
    if any(each != shapes for each in exchange.objects(shapes)):
        call.spread.refuse(
            f"{call.name} draws one random number for the whole batch, so its outputs have different shapes on each "
            "rank; draw the number in the training loop and pass it to the model"
        )
