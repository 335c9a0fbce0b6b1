"""Checksums that show whether values are bitwise equal: tensors, arrays, plain values and objects with fields."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from io import BytesIO
from types import ModuleType
from typing import Any

_ADDRESS = re.compile(r"\bat 0x[0-9a-f]+")  # the address of an object differs between processes
_DEEPEST = 30  # nesting depth; deeper objects count by their class only


def digest(value: Any, seed: int = 0) -> int:
    """Return a checksum of a value: tensors and arrays by type, shape and bytes, objects by class and fields.

    Other values count by their `repr` without addresses.
    """
    return _Walk().through(value, seed)


@dataclass
class _Walk:
    """A traversal of values that may refer to each other; each object is visited once."""

    seen: dict[int, tuple[int, Any]] = field(default_factory=dict)  # id -> number, and the object, to keep it alive
    depth: int = 0

    def through(self, value: Any, seed: int) -> int:
        if isinstance(value, Mapping):
            return self._pairs(((key, value[key]) for key in sorted(value, key=str)), seed)
        if isinstance(value, list | tuple):
            for one in value:
                seed = self.through(one, seed)
            return seed
        if isinstance(value, Set):
            return self.through(sorted(digest(one) for one in value), seed)
        if hasattr(value, "detach") and hasattr(value, "dtype"):  # files have a detach method too
            kind = f"{value.dtype}{tuple(value.shape)}".encode()
            return zlib.crc32(_bytes(value.detach()), zlib.crc32(kind, seed))
        if hasattr(value, "tobytes") and not isinstance(value, type):
            return self._array(value, seed)
        return self._object(value, seed)

    def _pairs(self, pairs: Iterable[tuple[Any, Any]], seed: int) -> int:
        for key, value in pairs:
            seed = self.through(value, zlib.crc32(str(key).encode(), seed))
        return seed

    def _array(self, value: Any, seed: int) -> int:
        """Return the checksum of a NumPy array or scalar, or a PIL image."""
        if getattr(getattr(value, "dtype", None), "hasobject", False):
            return self.through(value.tolist(), seed)
        kind = [str(getattr(value, name, "")) for name in ("dtype", "shape", "mode", "size")]
        return zlib.crc32(value.tobytes(), zlib.crc32("".join(kind).encode(), seed))

    def _object(self, value: Any, seed: int) -> int:
        """Return the checksum of an object by class and fields, or by its `repr` if it has no fields."""
        if isinstance(value, BytesIO):
            return zlib.crc32(value.getvalue(), seed)
        fields = [] if isinstance(value, type | ModuleType) else sorted(fields_of(value))
        if not fields:
            return zlib.crc32(_ADDRESS.sub("", repr(value)).encode(), seed)
        known = id(value) in self.seen
        number, _ = self.seen.setdefault(id(value), (len(self.seen), value))
        seed = zlib.crc32(f"{type(value).__qualname__} {number}".encode(), seed)
        if known or self.depth == _DEEPEST:
            return seed
        self.depth += 1
        seed = self._pairs(((name, getattr(value, name)) for name in fields), seed)
        self.depth -= 1
        return seed


def fields_of(value: Any) -> set[str]:
    """Return the names of an object's own attributes, in its dict or its slots."""
    slots = (getattr(kind, "__slots__", ()) for kind in type(value).__mro__)
    named = {name for some in slots for name in ([some] if isinstance(some, str) else some)}
    own = getattr(value, "__dict__", {})
    return {*own, *(name for name in named if not name.startswith("__") and hasattr(value, name))}


def _bytes(tensor: Any) -> Any:
    """Return a tensor's bytes as an array, for any data type; for a sharded tensor, the bytes of this rank's part."""
    import torch

    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    flat = tensor.cpu().contiguous().reshape(-1)
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8).numpy()  # one element can have another stride
