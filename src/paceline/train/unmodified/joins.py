"""Combines the results of a split call: the results for the rows of each rank become those for the whole batch.

Rows are concatenated. A number, such as the loss, is the mean over rows, their sum, or a mean by another count.
A value that is equal on all ranks is used as it is. `comparison` finds out which rule holds. The cache of a language
model cannot be combined; in training hardly any program reads it, and one that does is ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.train.unmodified import shares
from paceline.train.unmodified.call import Call, sizes, times
from paceline.train.unmodified.exchange import Exchange
from paceline.train.unmodified.later import Later
from paceline.train.unmodified.snapshot import Place
from paceline.train.unmodified.state import Spread

OWN, ROWS, UNREAD = "own", "rows joined", "not to be read"


@dataclass
class Way:
    """How the calls of one kind are split, and how their results are combined.

    Attributes:
        splits: Whether calls are split; otherwise each rank calls the model with all rows.
        is_cut: For each leaf of the call whether each rank gets only its rows.
        joins: For each output `OWN` (equal on all ranks), `ROWS` (concatenated), `UNREAD` (cannot be combined), or the
            rule that weighs a number.
        slots: Attributes and container items that the model sets to tensors, each with its rule.
        changes: Indices of the inputs that the model changes in place.
        draws_for_rows: Whether the model draws random numbers for each row from torch.
        draws_for_all: Whether some random numbers are one draw for the whole batch. Without numbers for rows, all ranks
            draw the same.
        off: For each number and rule, the sum of the relative errors in all comparisons.
        settled: Whether the rule of each number is certain.
        looks: The number of comparisons so far.
        calls: The number of calls since the first comparison.
        requests: The number of requests for comparisons, of all ranks, at the last comparison.
    """

    splits: bool = True
    is_cut: tuple[bool, ...] = ()
    joins: list[str] = field(default_factory=list)
    slots: list[tuple[Place, str]] = field(default_factory=list)
    changes: list[int] = field(default_factory=list)
    draws_for_rows: bool = False
    draws_for_all: bool = False
    off: dict[Any, dict[str, float]] = field(default_factory=dict)
    settled: bool = True
    looks: int = 1
    calls: int = 0
    requests: int = 0

    @property
    def draws(self) -> bool:
        """Whether the model draws random numbers from torch."""
        return self.draws_for_rows or self.draws_for_all


def weighs_nothing(call: Call, way: Way) -> bool:
    """Return whether any rank has no valid target, so that its loss would be undefined (0 / 0)."""
    others = (OWN, ROWS, UNREAD, "rows", "sum")
    rules = {join for join in (*way.joins, *(join for _, join in way.slots)) if join not in others}
    if not rules:
        return False
    weights = shares.weights(call.shares())
    return any(not share for rule in rules for share in weights[rule])


def together(exchange: Exchange, call: Call, way: Way, result: Any) -> Any:
    """Combine the outputs of all ranks; tensors that the model stored elsewhere are combined when they are read.

    Args:
        exchange: The exchanges with the other ranks.
        call: The call, with the inputs of the whole batch.
        way: How its results are combined.
        result: What the model returned for this rank's rows.

    Returns:
        The result for the whole batch, in the same structure.
    """
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
    found = [
        _UnreadCache(call.spread, call.name, leaf) if join == UNREAD else leaf
        for leaf, join in zip(found, way.joins, strict=True)
    ]
    return pytree.tree_unflatten(found, spec)


def is_cache(value: Any) -> bool:
    """Return whether an output is the cache of a language model, such as `DynamicCache` of Hugging Face."""
    return type(value).__name__.endswith("Cache") and not hasattr(type(value), "__torch_function__")


class _UnreadCache:
    """Stands for the cache of a call that was split; any use except its class and its text ends the program.

    Args:
        spread: The state of this rank.
        name: The name of the model.
        cache: The cache of this rank.
    """

    def __init__(self, spread: Spread, name: str, cache: Any) -> None:
        for key, value in (("spread", spread), ("name", name), ("kind", type(cache))):
            object.__setattr__(self, f"_paceline_{key}", value)

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return object.__getattribute__(self, "_paceline_kind")
        return _end(self)

    def __repr__(self) -> str:
        return f"<a {object.__getattribute__(self, '_paceline_kind').__name__} that the ranks have not put together>"


def _end(unread: _UnreadCache, *args: Any) -> Any:
    spread, name, kind = (object.__getattribute__(unread, f"_paceline_{key}") for key in ("spread", "name", "kind"))
    spread.refuse(
        f"the program reads the {kind.__name__} that {name} returned in training, and ranks cannot put it together; "
        "leave it unread, or call the model in evaluation (eval() and torch.no_grad())"
    )


for _name in ("setattr", "len", "iter", "bool", "getitem", "setitem", "contains", "reduce_ex", "deepcopy", "copy"):
    setattr(_UnreadCache, f"__{_name}__", _end)


class _Weigh:
    """Combines the results of one call over the ranks."""

    def __init__(self, exchange: Exchange, call: Call) -> None:
        self._exchange, self._call, self.groups = exchange, call, exchange.groups

    def whole(self, leaf: Any, join: str) -> Any:
        """Return the result for the whole batch from this rank's tensor, by a rule of `Way.joins`."""
        if join == ROWS:
            return self._exchange.whole(leaf, _dealt(self._call, leaf))
        share = shares.weights(self._call.shares())[join][self._call.spread.rank]
        return self._exchange.mean(leaf, share)

    def later(self, leaf: Any, join: str) -> Any:
        """Return the value for the whole batch of a tensor in an attribute, when the program reads the attribute."""
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
    """End the program if outputs have other shapes on another rank, because of a random number for the whole batch."""
    shapes = [list(leaf.shape[1:]) for leaf in leaves if isinstance(leaf, exchange.torch.Tensor)]
    if any(each != shapes for each in exchange.objects(shapes)):
        call.spread.refuse(
            f"{call.name} draws one random number for the whole batch, so its outputs have different shapes on each "
            "rank; draw the number in the training loop and pass it to the model"
        )
