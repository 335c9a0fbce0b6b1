"""Check that all ranks read the same data; each rank reads only its part, so a difference would go unnoticed.

The ranks compare digests of the lists, dictionaries, arrays and tensors in a dataset, and of the variables outside of
the dataset that its methods use. This happens once for each loader. Names of temporary folders may differ.

The module `read_side_effects` checks whether reading a sample changes a dataset.
"""

from __future__ import annotations

import dis
import functools
import os
import re
import tempfile
import types
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from paceline.train.ranks.agreement import bytes_of
from paceline.train.unmodified.exchange import Exchange
from paceline.train.unmodified.snapshot import is_own
from paceline.train.unmodified.state import Spread

_MOST_VALUES = 200_000  # of a dataset; more values count as equal
_MOST_OF_LIST = 20_000  # sampled elements of a list, about
_MOST_BYTES = 16 << 20  # sampled bytes of a tensor or an array, about
_MOST_ITEMS = 64  # a longer list holds samples, and its entries are not searched
_MOST_DEPTH = 6


def compare(spread: Spread, exchange: Exchange, dataset: Any, *, was_split: bool) -> None:
    """End the program if a dataset has other content on another rank; the message names the attribute.

    Args:
        spread: The state of this rank.
        exchange: The exchanges with the other ranks.
        dataset: The dataset.
        was_split: Whether ranks have already read parts of batches from the dataset. Dictionaries and lists with None
            are then not compared, because each rank can have cached other samples in them.
    """
    places = [tempfile.gettempdir(), os.path.dirname(spread.folder)]  # of this rank, and of rank 0
    digests = Digests(spread.torch, places, skip_caches=was_split)
    own = list(digests.of_parts(type(dataset).__name__, dataset))
    every = exchange.objects(own)
    for rank, other in enumerate(every):
        if other != every[0]:
            names = [one[0] for one, two in zip(every[0], other, strict=False) if one != two]
            what = names[0] if names else type(dataset).__name__
            spread.refuse(
                f"the ranks would read other samples: {what} is not the same on rank {rank} as on rank 0. Something is "
                "drawn or listed that differs between processes, such as files in no particular order; sort it, or "
                "seed it with a number"
            )


class Digests:
    """Computes digests (CRC32) of the values in an object.

    Args:
        torch: The torch module.
        places: Folders that contain temporary folders, whose names may differ.
        skip_caches: Whether containers that can be caches are left out.
        arrays_only: Whether only tensors and arrays in the memory of this process count, also in short lists.
    """

    def __init__(self, torch: Any, places: Sequence[str] = (), *, skip_caches: bool, arrays_only: bool = False) -> None:
        self._torch, self._left, self._skip_caches = torch, _MOST_VALUES, skip_caches
        self._arrays_only = arrays_only
        self._seen: set[int] = set()
        self._temporary = re.compile("|".join(f"{re.escape(place)}/[^/]*" for place in places))

    def of_parts(self, name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, int]]:
        """Yield the name and a digest of each container in an object.

        Args:
            name: The name of the object in messages.
            value: The object, or a container.
            depth: The depth of nesting; deeper objects than `_MOST_DEPTH` are ignored.
        """
        if id(value) in self._seen or depth > _MOST_DEPTH:
            return
        self._seen.add(id(value))
        has_none = isinstance(value, list) and any(each is None for each in value)
        if self._skip_caches and (has_none or isinstance(value, dict)):
            return
        if self._is_container(value):
            if not self._arrays_only or self._is_own_array(value):
                yield name, self._of(value, 0)
            inner = value if isinstance(value, list | tuple) and len(value) < _MOST_ITEMS else ()
            for place, each in enumerate(inner):
                if self._is_object(each) or (self._arrays_only and self._is_own_array(each)):
                    yield from self.of_parts(f"{name}[{place}]", each, depth + 1)
        elif self._is_object(value):
            for key, each in [*vars(value).items(), *variables_of_class(type(value))]:
                yield from self.of_parts(f"{name}.{key}", each, depth + 1)

    def _is_container(self, value: Any) -> bool:
        return isinstance(value, list | tuple | dict | deque | self._torch.Tensor) or _is_array(value)

    def _is_own_array(self, value: Any) -> bool:
        """Return whether a value is a tensor or an array whose memory other processes cannot change."""
        if isinstance(value, self._torch.Tensor):
            is_plain = type(value) is self._torch.Tensor and value.device.type != "meta"
            return is_plain and (value.is_cuda or not value.is_shared())
        base = value
        while _is_array(base) and base.base is not None:
            base = base.base
        return _is_array(value) and (_is_array(base) or isinstance(base, bytes | self._torch.Tensor))

    def _is_object(self, value: Any) -> bool:
        if isinstance(value, self._torch.nn.Module | type) or not hasattr(value, "__dict__") or callable(value):
            return isinstance(value, self._torch.utils.data.Dataset)
        kind: Any = type(value)
        return isinstance(value, self._torch.utils.data.Dataset) or is_own(kind)

    def _of(self, value: Any, depth: int) -> int:
        self._left -= 1
        if self._left < 0 or depth > _MOST_DEPTH:
            return 0
        if isinstance(value, self._torch.Tensor):
            return self._of_tensor(value)
        if _is_array(value):
            return self._of_array(value)
        if isinstance(value, Mapping):
            return _combined([self._of(each, depth + 1) for pair in _some(list(value.items())) for each in pair])
        if isinstance(value, list | tuple | deque):
            return _combined([len(value), *(self._of(each, depth + 1) for each in _some(list(value)))])
        return self._of_plain(value)

    def _of_plain(self, value: Any) -> int:
        if isinstance(value, bool | int | float | complex | bytes | type(None)):
            return zlib.crc32(repr(value).encode())
        if isinstance(value, str | os.PathLike):
            text = os.fspath(value)
            text = text if isinstance(text, str) else os.fsdecode(text)
            return zlib.crc32(self._temporary.sub("", text).encode("utf-8", "surrogatepass"))
        return zlib.crc32(type(value).__name__.encode())

    def _of_tensor(self, value: Any) -> int:
        shape = zlib.crc32(f"{tuple(value.shape)} {value.dtype}".encode())
        if value.layout is not self._torch.strided or value.is_quantized or not value.numel():
            return shape
        with self._torch.no_grad():
            rows = value.detach() if value.dim() else value.detach().reshape(1)
            every = max(1, rows.numel() * rows.element_size() // _MOST_BYTES)
            taken = bytes_of(rows[::every]).cpu()
        return zlib.crc32(taken.numpy().tobytes(), shape)

    def _of_array(self, value: Any) -> int:
        shape = zlib.crc32(f"{value.shape} {value.dtype}".encode())
        if value.dtype.hasobject or not value.size:
            return _combined([shape, *(self._of(each, 1) for each in _some(list(value.flat)))])
        rows = value if value.ndim else value.reshape(1)
        return zlib.crc32(rows[:: max(1, value.nbytes // _MOST_BYTES)].tobytes(), shape)


def variables_of_class(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of closure and global variables that the methods of a class of the program use."""
    methods = [each for each in vars(kind).values() if isinstance(each, types.FunctionType)] if is_own(kind) else []
    for function in methods:
        yield from variables_of(function)


def variables_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of closure and global variables that a function uses."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a variable without a value
            yield name, cell.cell_contents
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]


@functools.cache
def _global_names(code: types.CodeType) -> tuple[str, ...]:
    """Return the names of the global variables that code uses; `co_names` has names of attributes too."""
    found = (each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "STORE_GLOBAL"))
    return tuple(dict.fromkeys(found))


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and hasattr(value, "nbytes") and hasattr(value, "flat")


def _some(values: list[Any]) -> list[Any]:
    return values[:: max(1, len(values) // _MOST_OF_LIST)]


def _combined(numbers: list[int]) -> int:
    return zlib.crc32(repr(numbers).encode())


def nested(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and the datasets inside it, such as that of a `Subset`."""
    while dataset is not None:
        yield dataset
        dataset = vars(dataset).get("dataset") if hasattr(dataset, "__dict__") else None


def class_with_getitems(dataset: Any) -> str | None:
    """Return the name of the program's class that defines ``__getitems__`` for a dataset, or None.

    The method gets the indices of a whole batch. It can use all samples of the batch, for example to normalize them.

    Args:
        dataset: The dataset; those inside of it, as of a `Subset`, are included.
    """
    for each in nested(dataset):
        kind: Any = type(each)
        owner = next((base for base in kind.__mro__ if "__getitems__" in vars(base)), None)
        if owner is not None and is_own(owner):
            return str(owner.__name__)
    return None
