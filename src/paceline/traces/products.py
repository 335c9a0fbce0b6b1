"""How fast were products of matrices, convolutions and attention, shape by shape?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paceline.traces.flops import Call, Work, work_of

_Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Product:
    """All calls of an operator with the same shapes; nanoseconds, operations and bytes of all of them."""

    name: str
    shapes: Sequence[Sequence[int]]
    format: str  # "bf16"; "tf32": numbers are fp32, and tensor cores multiply them
    calls: int
    total_ns: int
    flops: int
    bytes: int

    @property
    def flops_per_s(self) -> float | None:
        """What was reached."""
        return self.flops / self.total_ns * 1e9 if self.total_ns else None


@dataclass(kw_only=True)
class _Tally:
    work: Work
    calls: int = 0
    total_ns: int = 0
    on_tensor_cores: bool = False


class Products:
    """Adds GPU work up by the operator that it belongs to and its shapes."""

    def __init__(self, outer: Iterable[int] = ()) -> None:
        """Begin with nothing.

        Args:
            outer: Numbers of calls that are none themselves, though they have a formula: one within them is.
        """
        self._found: dict[tuple[str, _Shapes], _Tally] = {}
        self._known: dict[int, tuple[str, _Shapes] | None] = dict.fromkeys(outer)

    def take(self, which: int, call: Call, total_ns: int, on_tensor_cores: bool) -> bool:
        """Take GPU work of a call; False where its operator has no formula, or told no shapes.

        Args:
            which: Number of the call: it may launch several pieces of work, and counts once.
            call: Name and shapes.
            total_ns: Of the piece of work.
            on_tensor_cores: Whether it ran on them.
        """
        if which not in self._known:
            self._known[which] = self._begun(call)
        key = self._known[which]
        if key is None:
            return False
        tally = self._found[key]
        tally.total_ns += total_ns
        tally.on_tensor_cores |= on_tensor_cores
        return True

    def _begun(self, call: Call) -> tuple[str, _Shapes] | None:
        work = work_of(call)
        if work is None:
            return None
        key = call.name, tuple(tuple(dims) for dims in call.dims if dims)
        self._found.setdefault(key, _Tally(work=work)).calls += 1
        return key

    def found(self) -> list[Product]:
        """Return all of them, what takes most first."""
        made = [_made(name, shapes, tally) for (name, shapes), tally in self._found.items()]
        return sorted(made, key=lambda one: (-one.total_ns, one.name))


def _made(name: str, shapes: _Shapes, tally: _Tally) -> Product:
    form = tally.work.format
    return Product(
        name=name,
        shapes=shapes,
        format="tf32" if form == "fp32" and tally.on_tensor_cores else form,
        calls=tally.calls,
        total_ns=tally.total_ns,
        flops=tally.calls * tally.work.flops,
        bytes=tally.calls * tally.work.bytes,
    )
