"""One call of a model: its inputs, which of them have one entry for each sample, and the kind of the call."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from paceline.train.ranks.agreement import bytes_of
from paceline.train.unmodified import shares
from paceline.train.unmodified.state import Spread

_MOST_OTHERS = 4  # with at most this many further tensors of batch size, all combinations are tried


@dataclass(frozen=True)
class Call:
    """One call of a model.

    Attributes:
        spread: The state of this rank.
        module: The model.
        forward: Calls the model, unpatched, with positional and keyword arguments.
        leaves: The flattened inputs.
        spec: The structure of the inputs, from `torch.utils._pytree`.
        rows: The number of rows (samples) in the whole batch.
        is_cut: For each leaf whether it has one entry for each row, so that each rank gets its slice of it.
        number: The number of the call of the model, from 1 on; 0 if it was not counted.
    """

    spread: Spread
    module: Any
    forward: Any
    leaves: Sequence[Any]
    spec: Any
    rows: int
    is_cut: tuple[bool, ...]
    number: int = 0

    @staticmethod
    def of(spread: Spread, module: Any, forward: Any, given: tuple[Sequence[Any], Any], rows: int) -> Call:
        """Return a call in which every tensor whose first dimension is the batch size is cut.

        Args:
            spread: The state of this rank.
            module: The model.
            forward: Calls the model, unpatched.
            given: The flattened inputs and their structure.
            rows: The batch size.
        """
        leaves, spec = given
        tensor = spread.torch.Tensor
        is_cut = tuple(isinstance(leaf, tensor) and leaf.dim() > 0 and leaf.shape[0] == rows for leaf in leaves)
        return Call(spread, module, forward, leaves, spec, rows, is_cut)

    @property
    def name(self) -> str:
        """The class name of the model for messages, without the prefix that FSDP2 adds."""
        return type(self.module).__name__

    def ways_to_cut(self) -> Iterator[Call]:
        """Yield this call, then variants that cut fewer tensors, as some tensors can lack a batch dimension."""
        first = self.is_cut.index(True)
        others = [place for place, cut in enumerate(self.is_cut) if cut and place > first]
        square = [place for place in others if self.leaves[place].shape[1:2] == (self.rows,)]
        tried: list[tuple[bool, ...]] = []
        subsets = (c for size in range(2, len(others)) for c in combinations(others, size))
        some = subsets if len(others) <= _MOST_OTHERS else ()
        for whole in ([], square, *([place] for place in others), others, *some):
            is_cut = tuple(cut and place not in whole for place, cut in enumerate(self.is_cut))
            if is_cut not in tried:
                tried.append(is_cut)
                yield replace(self, is_cut=is_cut)

    def bounds(self) -> tuple[int, int]:
        """Return this rank's rows as a half-open range: the first row and the end."""
        return bounds(self.rows, self.spread.ranks, self.spread.rank)

    def with_leaves(self, leaves: Sequence[Any]) -> tuple[Any, Any]:
        """Return the positional and keyword arguments with other leaves in the same structure."""
        args, kwargs = self.spread.torch.utils._pytree.tree_unflatten(list(leaves), self.spec)
        return args, kwargs

    def describe_list_input(self) -> str:
        """Return a sentence for an error message if the first input is a list, such as a list of images; else ""."""
        args, kwargs = self.with_leaves(self.leaves)
        first = next(iter((*args, *kwargs.values())), None)
        if not isinstance(first, list | tuple) or len(first) < 2:
            return ""
        if type(first).__name__ == "PackedSequence":
            return (
                " Its first input is a PackedSequence, which is not split by samples: pack sequences inside forward() "
                "of the model that the program calls."
            )
        return f" Its first input is a list of {len(first)} entries: the rows of each entry were split, not the list."

    def shares(self) -> dict[str, list[float]]:
        """Return the count or sum of each rank by which a loss may be weighed, by the name of the rule.

        The rules are rows, and for each cut input: elements of 0 or more and elements other than 0 (whole numbers),
        ones (booleans, and floats that are all 0 or 1), and the sum (one number of 0 or more for each row). Inputs with
        several dimensions have each rule once more, without the first position of each row.
        """
        found: dict[str, list[float]] = {"rows": list(sizes(self.rows, self.spread.ranks))}
        for place, leaf in enumerate(self.leaves):
            for name, values in _weighing(self.spread.torch, leaf) if self.is_cut[place] else ():
                found[f"{name} of input {place}"] = self._dealt(values)
                if values.dim() > 1 and values.shape[1] > 1:
                    found[f"{name} of input {place} but the first"] = self._dealt(values[:, 1:])
        return found

    def _dealt(self, values: Any) -> list[float]:
        of_rows = values.flatten(1).sum(1) if values.dim() > 1 else values.double()
        return [float(part.sum()) for part in of_rows.split(sizes(self.rows, self.spread.ranks))]

    def kind(self) -> Any:
        """Return a hashable key; one comparison with the whole batch holds for all calls with the same key."""
        torch = self.spread.torch
        kinds = tuple(self._kind_of(place, leaf) for place, leaf in enumerate(self.leaves))
        return (
            self.module.training,
            torch.is_grad_enabled(),
            kinds,
            str(self.spec),
            shares.alike(self.shares()),
        )

    def _kind_of(self, place: int, leaf: Any) -> Any:
        if isinstance(leaf, self.spread.torch.Tensor):
            return leaf.dim(), leaf.dtype, self.is_cut[place], leaf.requires_grad
        if isinstance(leaf, bool | str | bytes | type(None)):
            return leaf
        return type(leaf) if isinstance(leaf, int | float | complex) else (type(leaf), getattr(leaf, "__name__", ""))

    def numbers(self) -> tuple[Any, ...]:
        """Return the Python numbers among the inputs."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, int | float | complex))


def _weighing(torch: Any, leaf: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and tensors of an input whose sums may be the weight of a loss."""
    if leaf.is_complex() or leaf.layout != torch.strided:
        return
    whole = leaf.dtype in (torch.int64, torch.int32, torch.uint8)
    if leaf.dtype == torch.int64:
        yield "targets", leaf >= 0
    if whole:
        yield "entries", leaf != 0
    elif all(bool((each.bool() == each).all()) for each in (leaf.detach().flatten()[:64], leaf.detach())):
        yield "entries", leaf == 1  # all elements are 0 or 1; most other inputs are told by their first elements
    if leaf.numel() == leaf.shape[0] and bool((leaf >= 0).all()):
        yield "sum", leaf.detach().flatten().double()


def rows_of(torch: Any, leaves: Sequence[Any]) -> int | None:
    """Return the batch size: the size of dimension 0 of the first tensor that is not a scalar; None without one."""
    return next((leaf.shape[0] for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim() > 0), None)


def digest(torch: Any, tensor: Any) -> int:
    """Return the CRC32 of a tensor's bytes."""
    with torch.no_grad():
        return zlib.crc32(bytes_of(tensor).cpu().numpy().tobytes())


def is_plain(torch: Any, leaf: Any) -> bool:
    """Return whether an input is a tensor, a plain value or a callable; other objects could contain rows."""
    plain = (torch.Tensor, type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
    return isinstance(leaf, plain) or callable(leaf)


# ------------------------------------------------------------------------------------------------ rows of the ranks
# Rank p of n has the rows from p B / n up to (p + 1) B / n, rounded down, of a batch of B rows.


def bounds(rows: int, ranks: int, rank: int) -> tuple[int, int]:
    """Return the rows of a rank as a half-open range: the first row and the end."""
    return rank * rows // ranks, (rank + 1) * rows // ranks


def sizes(rows: int, ranks: int) -> list[int]:
    """Return the number of rows of each rank; the numbers differ by at most one."""
    return [bounds(rows, ranks, rank)[1] - bounds(rows, ranks, rank)[0] for rank in range(ranks)]


def times(parts: Sequence[int], own: int, found: int) -> int | None:
    """Return how many rows of an output belong to one row of the input, or None if that is no whole number.

    Args:
        parts: The number of rows of each rank.
        own: The number of input rows on this rank.
        found: The size of the output's first dimension.
    """
    return found // own if own and found and found % own == 0 else None
