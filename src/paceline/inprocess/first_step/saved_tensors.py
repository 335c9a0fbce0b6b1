"""What does a forward pass keep for its backward pass? Asked of autograd itself, tensor by tensor.

A storage counts once, however many operations keep a view of it; weights and buffers of the module do not. The peak is
reached where the kept storages up to one, with its gradient and the one that this is made from, are most: in a network
whose last maps are small that is all that is kept.
"""

from __future__ import annotations

import sys
from typing import Any

_IN_HAND = 2  # gradients of a map while its operation runs backwards


class Kept:
    """Hooks of autograd that count; between `begin` and `end`."""

    def __init__(self, module: Any) -> None:
        torch = sys.modules["torch"]
        self._known = [*module.parameters(), *module.buffers()]
        self._own = {_storage(each)._cdata for each in self._known}
        self._held: dict[int, Any] = {}  # storages, which stay: another one would get the same number
        self._order: list[tuple[int, int, bool]] = []  # elements, bytes, whether they are numbers with a point
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor)
        self._torch = torch

    def begin(self) -> None:
        """Count from now on."""
        self._hooks.__enter__()

    def end(self) -> None:
        """Leave autograd as it was."""
        self._hooks.__exit__(None, None, None)

    def described(self) -> dict[str, int]:
        """Return ``elements`` in the format of the pass at its peak, and ``other_bytes`` of indices and masks."""
        so_far = other = most = 0
        for elements, size, has_point in self._order:
            if not has_point:
                other += size
                continue
            so_far += elements
            most = max(most, so_far + _IN_HAND * elements)
        return {"elements": most, "other_bytes": other}

    def _keep(self, tensor: Any) -> Any:
        with self._torch._C.DisableTorchFunction():
            storage = _storage(tensor)
            if storage._cdata not in self._own and storage._cdata not in self._held:
                self._held[storage._cdata] = storage
                count = storage.nbytes() // tensor.element_size()
                self._order.append((count, storage.nbytes(), tensor.is_floating_point()))
        return tensor


def _storage(tensor: Any) -> Any:
    return tensor.untyped_storage()
