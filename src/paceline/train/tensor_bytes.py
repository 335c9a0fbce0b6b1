"""The elements of a tensor as bytes, for sending, for files and for digests."""

from __future__ import annotations

from typing import Any


def bytes_of(tensor: Any) -> Any:
    """Return the bytes of a tensor's elements, in their order, as a 1-D uint8 tensor on the same device.

    A contiguous tensor is not copied. torch calls a tensor of one element contiguous whatever its stride is, and then
    refuses to view it as bytes.

    Args:
        tensor: A strided tensor of any shape.
    """
    import torch

    flat = tensor.detach().contiguous().reshape(-1)
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8)
