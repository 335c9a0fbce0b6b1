"""Copies of the plain attributes and small buffers of a model, such as a counter of its calls.

A comparison calls a model several times with the same inputs. A model that counts its calls computes something else in
each call, so its counters must be reset before each call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

PLAIN = frozenset([bool, int, float, str])
_MOST_ELEMENTS = 16  # larger buffers are not copied


@dataclass(frozen=True)
class AttributeSnapshot:
    """The plain attributes and small buffers of each submodule of a model, in the order of `Module.modules`.

    Attributes:
        names: The names of all attributes.
        attributes: The values of the plain attributes, by name.
        buffers: Copies of the small buffers on the CPU, by name.
    """

    names: Sequence[frozenset[str]]
    attributes: Sequence[dict[str, Any]]
    buffers: Sequence[dict[str, Any]]

    @staticmethod
    def take(module: Any) -> AttributeSnapshot:
        """Return a snapshot of the current values."""
        parts = [*module.modules()]
        attributes = [
            {name: value for name, value in vars(part).items() if type(value) in PLAIN and name != "training"}
            for part in parts
        ]
        buffers = [
            {name: value.detach().clone() for name, value in part._buffers.items() if _is_small(value)}
            for part in parts
        ]
        return AttributeSnapshot([frozenset(vars(part)) for part in parts], attributes, buffers)

    def restore(self, module: Any) -> None:
        """Set the model to the values of the snapshot. Plain attributes that are not in the snapshot are deleted."""
        parts = module.modules()
        for part, names, attributes, buffers in zip(parts, self.names, self.attributes, self.buffers, strict=False):
            for name in [name for name, value in vars(part).items() if type(value) in PLAIN and name not in names]:
                del vars(part)[name]
            vars(part).update(attributes)
            for name, value in buffers.items():
                if _is_small(part._buffers.get(name)):
                    part._buffers[name].data.copy_(value)


@contextmanager
def with_attributes(module: Any, snapshot: AttributeSnapshot | None) -> Iterator[None]:
    """Set a model to the values of a snapshot inside the context; without a snapshot, change nothing."""
    if snapshot is None:
        yield
        return
    now = AttributeSnapshot.take(module)
    snapshot.restore(module)
    try:
        yield
    finally:
        now.restore(module)


def _is_small(buffer: Any) -> bool:
    return buffer is not None and buffer.numel() <= _MOST_ELEMENTS and buffer.device.type == "cpu"
