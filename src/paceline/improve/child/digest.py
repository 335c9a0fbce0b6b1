"""Are two values the same to the last bit? A number for nested tensors, arrays and plain values."""

from __future__ import annotations

import zlib
from typing import Any


def digest(value: Any, seed: int = 0) -> int:
    """Return a checksum of a value: tensors and arrays by type, shape and bytes, the rest by what they print."""
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            seed = digest(value[key], zlib.crc32(str(key).encode(), seed))
        return seed
    if isinstance(value, list | tuple):
        for one in value:
            seed = digest(one, seed)
        return seed
    if hasattr(value, "detach"):
        value = _array(value.detach())
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):
        return zlib.crc32(value.tobytes(), zlib.crc32(f"{value.dtype}{getattr(value, 'shape', '')}".encode(), seed))
    return zlib.crc32(repr(value).encode(), seed)


def _array(tensor: Any) -> Any:
    """Return a tensor's bytes as an array, whatever its number format."""
    import torch

    flat = tensor.cpu().contiguous()
    return flat.numpy() if flat.dtype.is_floating_point and flat.element_size() > 2 else flat.view(torch.uint8).numpy()
