"""Plain attributes and small buffers of a model, such as a counter of its calls, at one time.

A comparison calls a model several times with the same inputs. A model that counts its calls would compute something
else in each call, unless it has the same values before each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

PLAIN = frozenset([bool, int, float, str])
_MOST_ELEMENTS = 16  # of a buffer


@dataclass(frozen=True)
class PlainState:
    """Plain attributes and small buffers of a model, for each of its submodules."""

    names: Sequence[frozenset[str]]  # of all attributes
    attributes: Sequence[dict[str, Any]]
    buffers: Sequence[dict[str, Any]]

    @staticmethod
    def of(module: Any) -> PlainState:
        """Return copies of the current values."""
        parts = [*module.modules()]
        attributes = [
            {name: value for name, value in vars(part).items() if type(value) in PLAIN and name != "training"}
            for part in parts
        ]
        buffers = [
            {name: value.detach().clone() for name, value in part._buffers.items() if _is_small(value)}
            for part in parts
        ]
        return PlainState([frozenset(vars(part)) for part in parts], attributes, buffers)

    def put(self, module: Any) -> None:
        """Set attributes and buffers to these values; delete plain attributes that did not exist."""
        parts = module.modules()
        for part, names, attributes, buffers in zip(parts, self.names, self.attributes, self.buffers, strict=False):
            for name in [name for name, value in vars(part).items() if type(value) in PLAIN and name not in names]:
                del vars(part)[name]
            vars(part).update(attributes)
            for name, value in buffers.items():
                if _is_small(part._buffers.get(name)):
                    part._buffers[name].data.copy_(value)


@contextmanager
def as_before(module: Any, plain: PlainState | None) -> Iterator[None]:
    """Return a context in which the plain attributes and small buffers of a model have other values, unless None."""
    if plain is None:
        yield
        return
    now = PlainState.of(module)
    plain.put(module)
    try:
        yield
    finally:
        now.put(module)


def _is_small(buffer: Any) -> bool:
    return buffer is not None and buffer.numel() <= _MOST_ELEMENTS and buffer.device.type == "cpu"
