"""Are two values the same to the last bit? A number for nested tensors, arrays and plain values."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Any

_ADDRESS = re.compile(r"\bat 0x[0-9a-f]+")  # where an object lies: elsewhere in every process


def digest(value: Any, seed: int = 0) -> int:
    """Return a checksum of a value: tensors and arrays by type, shape and bytes, the rest by what they print."""
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            seed = digest(value[key], zlib.crc32(str(key).encode(), seed))
        return seed
    if isinstance(value, list | tuple):
        for one in value:
            seed = digest(one, seed)
        return seed
    if hasattr(value, "detach"):
        kind = f"{value.dtype}{tuple(value.shape)}".encode()
        return zlib.crc32(_bytes(value.detach()), zlib.crc32(kind, seed))
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):
        return zlib.crc32(value.tobytes(), zlib.crc32(f"{value.dtype}{getattr(value, 'shape', '')}".encode(), seed))
    return zlib.crc32(_ADDRESS.sub("", repr(value)).encode(), seed)


def _bytes(tensor: Any) -> Any:
    """Return a tensor's bytes as an array, whatever its number format; of one that is sharded, this rank's part."""
    import torch

    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
