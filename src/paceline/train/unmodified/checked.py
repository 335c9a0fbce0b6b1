"""Is the output for some rows some rows of the output? Found out by calling a model with all rows, and with parts.

A call with all rows is held against calls with the part of each rank, without gradients; buffers, attributes and
random numbers are put back. A model that draws random numbers or has BatchNorm is called in evaluation mode for it.
An output of rows is joined; a number such as the loss must be the mean over rows, their sum, or the mean over valid
targets.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.train.unmodified import draws, shares
from paceline.train.unmodified.exchange import Exchange
from paceline.train.unmodified.rows import bounds, sizes, times
from paceline.train.unmodified.state import Spread

_NEAR = 1e-4  # of the largest value, for fp32; sums are added up in another order
_NEAR_16_BIT = 3e-2


@dataclass(frozen=True)
class Call:
    """One call of a model.

    Attributes:
        leaves: All that it is given, flattened.
        rows: Of the whole batch.
    """

    spread: Spread
    module: Any
    forward: Any
    leaves: Sequence[Any]
    spec: Any
    rows: int

    def is_of_rows(self, leaf: Any) -> bool:
        """Whether an input has one entry for each row."""
        return isinstance(leaf, self.spread.torch.Tensor) and leaf.dim() > 0 and leaf.shape[0] == self.rows

    def part(self, rank: int) -> Any:
        """Call it with the rows of one rank."""
        low, high = bounds(self.rows, self.spread.ranks, rank)
        own = [leaf[low:high] if self.is_of_rows(leaf) else leaf for leaf in self.leaves]
        args, kwargs = self.spread.torch.utils._pytree.tree_unflatten(own, self.spec)
        return self.forward(*args, **kwargs)

    def all_rows(self) -> Any:
        """Call it with all rows."""
        args, kwargs = self.spread.torch.utils._pytree.tree_unflatten(list(self.leaves), self.spec)
        return self.forward(*args, **kwargs)

    def shares(self) -> dict[str, list[int]]:
        """Return what ranks may weigh in a number, by the name of the rule: rows, or valid targets."""
        torch, found = self.spread.torch, {"rows": sizes(self.rows, self.spread.ranks)}
        for place, leaf in enumerate(self.leaves):
            if self.is_of_rows(leaf) and leaf.dtype == torch.int64:
                valid = leaf >= 0
                found[f"targets of input {place}"] = self._dealt(valid)
                if leaf.dim() > 1:
                    found[f"targets of input {place} but the first"] = self._dealt(valid[:, 1:])
        return found

    def _dealt(self, valid: Any) -> list[int]:
        counts = valid.flatten(1).sum(1) if valid.dim() > 1 else valid.long()
        return [int(part.sum()) for part in counts.split(sizes(self.rows, self.spread.ranks))]

    def kind(self) -> Any:
        """Return what calls that go together alike have in common."""
        torch = self.spread.torch
        shapes = tuple(
            (leaf.dim(), leaf.dtype, self.is_of_rows(leaf)) if isinstance(leaf, torch.Tensor) else type(leaf)
            for leaf in self.leaves
        )
        return self.module.training, torch.is_grad_enabled(), shapes, str(self.spec), shares.alike(self.shares())


@dataclass
class Way:
    """How the outputs of parts go together.

    Attributes:
        splits: False: each rank calls the model with all rows.
        joins: For each output, "own" where it is taken as it is, else what ranks weigh in it.
        draws: The model draws random numbers.
        off: For each number among the outputs, how far off each rule was in all looks together.
        settled: No further look is needed.
    """

    splits: bool = True
    joins: list[str] = field(default_factory=list)
    draws: bool = True
    off: dict[int, dict[str, float]] = field(default_factory=dict)
    settled: bool = True
    looks: int = 1
    buffers_to_compare: bool = True


def rows_of(torch: Any, leaves: Sequence[Any]) -> int | None:
    """Return how many rows a call has: those of its first tensor that has any."""
    return next((leaf.shape[0] for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim() > 0), None)


def digest(torch: Any, tensor: Any) -> int:
    """Return a number that tells tensors apart."""
    with torch.no_grad():
        return zlib.crc32(tensor.detach().contiguous().flatten().view(torch.uint8).cpu().numpy().tobytes())


def look(call: Call, before: Way | None, *, trains: bool) -> Way:
    """Find out how the outputs of parts go together; a model that trains and cannot be split is refused."""
    spread, torch = call.spread, call.spread.torch
    flatten = torch.utils._pytree.tree_flatten
    strange = next((leaf for leaf in call.leaves if not _is_plain(torch, leaf)), None)
    if strange is not None:
        return _cannot(
            call, trains, f"it is given a {type(strange).__name__}, in which rows may be that cannot be reached"
        )
    with spread.inside(split=False), torch.no_grad(), _put_back(call.module):
        whole, drew = draws.noticed(spread, call.all_rows)
        if drew or _normalises(call.module):
            call.module.eval()
            whole, draws_always = draws.noticed(spread, call.all_rows)
            if draws_always:
                return _cannot(
                    call, trains, "it draws random numbers in evaluation mode too, and cannot be held against itself"
                )
        try:
            parts = [flatten(call.part(rank))[0] for rank in range(spread.ranks)]
        except Exception as error:
            return _cannot(
                call, trains, f"with a part of the rows it fails ({type(error).__name__}: {str(error)[:200]})"
            )
    return _way(
        call, flatten(whole)[0], parts, Way(draws=drew, looks=1 + (before.looks if before else 0)), before, trains
    )


def _way(call: Call, whole: Any, parts: Any, way: Way, before: Way | None, trains: bool) -> Way:
    """Find out how each output goes together."""
    torch = call.spread.torch
    for place, value in enumerate(whole):
        own = [part[place] for part in parts]
        if not isinstance(value, torch.Tensor):
            if not trains and not _is_plain(torch, value):
                return _cannot(
                    call, trains, f"it returns a {type(value).__name__}, in which rows may be that cannot be reached"
                )
            way.joins.append("own")
            continue
        earlier = before.off.get(place, {}) if before else {}
        found = _of_number(call, value, own, way, place, earlier) if _is_number(value) else _join(call, value, own)
        if found is None:
            shape = "x".join(map(str, value.shape)) or "a number"
            return _cannot(
                call, trains, f"its output {place} ({shape}) for a part of the rows is no part of that for all rows"
            )
        way.joins.append(found)
    if not way.joins or set(way.joins) == {"own"}:
        return _cannot(call, trains, "it returns nothing in which a tensor of rows is found")
    return way


def _is_number(value: Any) -> bool:
    return value.dim() == 0 and value.is_floating_point()


def _is_plain(torch: Any, leaf: Any) -> bool:
    """Say whether no rows can be hidden in something: it is a tensor, or plainly none."""
    plain = (torch.Tensor, type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
    return isinstance(leaf, plain) or callable(leaf)


def _of_number(
    call: Call, whole: Any, parts: Sequence[Any], way: Way, place: int, earlier: Mapping[str, float]
) -> str | None:
    """Return the rule by which numbers are put together that has been nearest in all looks."""
    dealt = call.shares()
    found = shares.errors(dealt, float(whole), [float(part) for part in parts], _nearness(call.spread.torch, whole))
    off = {name: value + earlier.get(name, 0.0) for name, value in found.items()}
    if not off:
        return None
    way.off[place] = off
    way.settled = way.settled and shares.settled(dealt, off, way.looks)
    return min(off, key=lambda name: off[name])


def _cannot(call: Call, trains: bool, why: str) -> Way:
    name = type(call.module).__name__
    if trains:
        call.spread.refuse(
            f"{name} cannot be given parts of a batch: {why}. Rows must be the first dimension of its inputs and "
            "outputs and not "
            "depend on each other; else write the loop with paceline.train"
        )
    call.spread.tell(f"{name} is called with whole batches on each rank in evaluation: {why}")
    return Way(splits=False)


def _join(call: Call, whole: Any, parts: Sequence[Any]) -> str | None:
    """Return how an output goes together; None where it does not."""
    torch, dealt = call.spread.torch, sizes(call.rows, call.spread.ranks)
    if whole.dim():
        by = times(dealt, call.rows, whole.shape[0])
        fits = by and all(
            part.shape[:1] == (by * size,) and part.shape[1:] == whole.shape[1:]
            for part, size in zip(parts, dealt, strict=True)
        )
        if fits and _near(torch, torch.cat(list(parts)), whole):
            return "joined"
    return "own" if all(part.shape == whole.shape and bool(torch.equal(part, whole)) for part in parts) else None


def _near(torch: Any, found: Any, whole: Any) -> bool:
    if not whole.numel() or not whole.is_floating_point():
        return bool(torch.equal(found, whole))
    scale = float(whole.double().abs().max())
    atol = _nearness(torch, whole) * max(scale, 1e-6)
    return bool(torch.allclose(found.double(), whole.double(), rtol=0.0, atol=atol, equal_nan=True))


def _nearness(torch: Any, value: Any) -> float:
    halves = value.element_size() < 4 or torch.is_autocast_enabled(value.device.type)
    return _NEAR_16_BIT if halves else _NEAR


def _normalises(module: Any) -> bool:
    from torch.nn.modules.batchnorm import _BatchNorm

    return module.training and any(isinstance(each, _BatchNorm) for each in module.modules())


class _put_back:  # noqa: N801 reads as the verb it is
    """Leave a model as it was: mode, attributes and buffers."""

    def __init__(self, module: Any) -> None:
        self._states = [(each, dict(vars(each))) for each in module.modules()]
        self._buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        for each, state in self._states:
            vars(each).clear()
            vars(each).update(state)
        for buffer, value in self._buffers:
            buffer.copy_(value)


def weighs_nothing(call: Call, way: Way) -> bool:
    """Say whether a rank has nothing that counts in a number, and so no number: all of its targets are left out."""
    rules = {join for join in way.joins if join.startswith("targets")}
    return bool(rules) and any(not share for rule in rules for share in shares.weights(call.shares())[rule])


def together(exchange: Exchange, call: Call, way: Way, parts: Sequence[int], result: Any) -> Any:
    """Put the outputs of all ranks together."""
    torch, pytree = exchange.torch, exchange.torch.utils._pytree
    leaves, spec = pytree.tree_flatten(result)
    joins = way.joins if len(way.joins) == len(leaves) else _of_shapes(call, parts, leaves)
    weights = shares.weights(call.shares()) if any(join not in ("own", "joined") for join in joins) else {}
    found = []
    for leaf, join in zip(leaves, joins, strict=True):
        if not isinstance(leaf, torch.Tensor) or join == "own":
            found.append(leaf)
        elif leaf.dim():
            found.append(exchange.whole(leaf, _dealt(call, parts, leaf)))
        else:
            found.append(exchange.mean(leaf, weights[join][call.spread.rank]))
    return pytree.tree_unflatten(found, spec)


def _dealt(call: Call, parts: Sequence[int], leaf: Any) -> list[int]:
    own = parts[call.spread.rank]
    by = times(parts, own, leaf.shape[0])
    if by is None:
        call.spread.refuse(
            f"{type(call.module).__name__} returned {leaf.shape[0]} rows for {own}; it did otherwise before"
        )
    return [by * size for size in parts]


def _of_shapes(call: Call, parts: Sequence[int], leaves: Sequence[Any]) -> list[str]:
    """Return how outputs go together that only training has, by their shapes."""
    tensor = call.spread.torch.Tensor
    if any(isinstance(leaf, tensor) and not leaf.dim() for leaf in leaves):
        call.spread.refuse(
            f"{type(call.module).__name__} returns other outputs in training than in evaluation, numbers among them: "
            "what they "
            "are of the whole batch cannot be found out"
        )
    return ["joined" if isinstance(leaf, tensor) else "own" for leaf in leaves]


def compare_buffers(spread: Spread, exchange: Exchange, module: Any) -> None:
    """See that the first step has left the same buffers on all ranks."""
    names = [name for name, _ in module.named_buffers()]
    numbers = [digest(spread.torch, buffer) for buffer in module.buffers()]
    if not numbers or exchange.agree(numbers):
        return
    found = exchange.objects(numbers)
    other = next(name for name, each in zip(names, zip(*found, strict=True), strict=True) if len(set(each)) > 1)
    spread.refuse(
        f"the buffer {other} of {type(module).__name__} is computed from the rows of a batch, of which each rank has "
        "a part; "
        "write the loop with paceline.train"
    )
