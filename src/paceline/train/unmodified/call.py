"""One call of a model: which of its inputs have one entry per sample, and which other calls are like it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.train.unmodified import shares
from paceline.train.unmodified.rows import bounds, sizes
from paceline.train.unmodified.state import Spread


@dataclass(frozen=True)
class Call:
    """One call of a model.

    Attributes:
        leaves: All that it is given, flattened.
        rows: Of the whole batch.
        is_cut: For each leaf whether it has one entry for each row.
    """

    spread: Spread
    module: Any
    forward: Any
    leaves: Sequence[Any]
    spec: Any
    rows: int
    is_cut: tuple[bool, ...]

    @staticmethod
    def of(spread: Spread, module: Any, forward: Any, given: tuple[Sequence[Any], Any], rows: int) -> Call:
        """Return a call in which all leaves whose first dimension is as large as the batch are cut."""
        leaves, spec = given
        tensor = spread.torch.Tensor
        is_cut = tuple(isinstance(leaf, tensor) and leaf.dim() > 0 and leaf.shape[0] == rows for leaf in leaves)
        return Call(spread, module, forward, leaves, spec, rows, is_cut)

    @property
    def name(self) -> str:
        """What messages name the model."""
        return type(self.module).__name__.removeprefix("FSDP")

    def ways_to_cut(self) -> Iterator[Call]:
        """Yield this call, and calls in which leaves are whole that may have the size of the batch by chance."""
        first = self.is_cut.index(True)
        others = [place for place, cut in enumerate(self.is_cut) if cut and place > first]
        square = [place for place in others if self.leaves[place].shape[1:2] == (self.rows,)]
        tried: list[tuple[bool, ...]] = []
        for whole in ([], square, *([place] for place in others), others):
            is_cut = tuple(cut and place not in whole for place, cut in enumerate(self.is_cut))
            if is_cut not in tried:
                tried.append(is_cut)
                yield replace(self, is_cut=is_cut)

    def bounds(self) -> tuple[int, int]:
        """Return the first row of this rank, and the one behind its last."""
        return bounds(self.rows, self.spread.ranks, self.spread.rank)

    def with_leaves(self, leaves: Sequence[Any]) -> tuple[Any, Any]:
        """Return positional and keyword arguments that hold other leaves."""
        args, kwargs = self.spread.torch.utils._pytree.tree_unflatten(list(leaves), self.spec)
        return args, kwargs

    def shares(self) -> dict[str, list[int]]:
        """Return what ranks may weigh in a number, by the name of the rule: rows, or valid targets."""
        torch, found = self.spread.torch, {"rows": sizes(self.rows, self.spread.ranks)}
        for place, leaf in enumerate(self.leaves):
            if self.is_cut[place] and leaf.dtype == torch.int64:
                valid = leaf >= 0
                found[f"targets of input {place}"] = self._dealt(valid)
                if leaf.dim() > 1:
                    found[f"targets of input {place} but the first"] = self._dealt(valid[:, 1:])
        return found

    def _dealt(self, valid: Any) -> list[int]:
        counts = valid.flatten(1).sum(1) if valid.dim() > 1 else valid.long()
        return [int(part.sum()) for part in counts.split(sizes(self.rows, self.spread.ranks))]

    def kind(self) -> Any:
        """Return what calls that are compared once have in common."""
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
        """Return the Python numbers that it is given."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, int | float | complex))


def rows_of(torch: Any, leaves: Sequence[Any]) -> int | None:
    """Return how many rows a call has: those of its first tensor that has any."""
    return next((leaf.shape[0] for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim() > 0), None)


def digest(torch: Any, tensor: Any) -> int:
    """Return a number that identifies a tensor."""
    with torch.no_grad():
        return zlib.crc32(tensor.detach().contiguous().flatten().view(torch.uint8).cpu().numpy().tobytes())


def is_plain(torch: Any, leaf: Any) -> bool:
    """Return whether no rows can be hidden in something: it is a tensor, or plainly none."""
    plain = (torch.Tensor, type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
    return isinstance(leaf, plain) or callable(leaf)
