"""Count the tensors that a forward pass saves for its backward pass, with hooks of autograd.

A storage counts once, even if several operations save views of it. Weights and buffers of the module do not count. In
the backward pass, the memory in use at an operation is the storages saved by this operation and earlier ones, the
gradient that it computes and the gradient that it receives. The peak is the maximum over all operations; for a network
whose last feature maps are small, it is all saved storages.
"""

from __future__ import annotations

import sys
from typing import Any

_IN_HAND = 2  # gradients in memory while an operation runs backward


class Kept:
    """Autograd hooks that count saved tensors between `begin` and `end`."""

    def __init__(self, module: Any) -> None:
        torch = sys.modules["torch"]
        self._known = [*module.parameters(), *module.buffers()]
        self._own = {_storage(each)._cdata for each in self._known}
        self._held: dict[int, Any] = {}  # storages by address; kept alive, so that no new storage gets the same address
        self._order: list[tuple[int, int, bool]] = []  # elements, bytes, whether the type is a floating-point type
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor)
        self._torch = torch

    def begin(self) -> None:
        """Start to count saved tensors."""
        self._hooks.__enter__()

    def end(self) -> None:
        """Stop counting saved tensors, and remove the hooks."""
        self._hooks.__exit__(None, None, None)

    def described(self) -> dict[str, int]:
        """Return the size of the saved tensors.

        Returns:
            ``elements``: the peak number of elements of floating-point tensors. ``other_bytes``: the bytes of other
            tensors, such as indices and masks.
        """
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
