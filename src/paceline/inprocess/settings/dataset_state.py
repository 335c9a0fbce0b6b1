"""The state of a dataset, for detecting changes while copies of the dataset or its samples are in use.

A worker process has a copy of the dataset, threads load samples before the program requests them, and a cache stores
samples. None of these copies and samples has a later change: ``dataset.set_epoch(3)``, another image size, new weights
of hard examples. The state is a checksum of each attribute of the dataset, of the datasets in it, and of the plain
global variables that its ``__getitem__`` reads.
"""

from __future__ import annotations

import dis
import functools
import io
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from uuid import UUID

from paceline.inprocess.settings.digest import digest, fields_of
from paceline.inprocess.settings.streams import random_state

State = Mapping[str, int]  # attribute name -> checksum

_PLAIN = (str, bytes, int, float, complex, bool, type(None))
_VALUES = (PurePath, date, time, timedelta, Decimal, Fraction, UUID, Enum, range)  # a path caches its text on use
_SKIPPED = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, io.IOBase)
_MOST_ELEMENTS = 1000  # elements of a collection that are checked one by one
_MOST_BYTES = 1 << 26  # of an array; for a larger one, every n-th element is checked
_MOST_VALUES = 20_000  # per attribute
_MOST_DATASETS = 64
_DEEPEST = 8


def state_of(*roots: Any) -> State:
    """Return the state of datasets and of other objects that make samples, such as a collate function."""
    found: dict[str, int] = {}
    for place, root in enumerate(roots):
        _note_object(root, "" if place == 0 else f"{type(root).__name__}.", found, set())
    return found


def changed(before: State, now: State, ignoring: Set[str] = frozenset()) -> list[str]:
    """Return the names of the attributes that differ between two states."""
    return sorted(name for name in {*before, *now} - ignoring if before.get(name) != now.get(name))


def in_words(names: Sequence[str]) -> str:
    """Return the first three names as a list in prose, with the number of the others."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"`{name}`" for name in names[:3]) + more


def _note_object(value: Any, prefix: str, found: dict[str, int], seen: set[int]) -> None:
    if id(value) in seen or len(seen) > _MOST_DATASETS or isinstance(value, (*_PLAIN, *_SKIPPED)):
        return
    seen.add(id(value))
    if isinstance(value, Mapping | Set | list | tuple | deque) or _is_array(value):
        found[prefix.rstrip(".") or "samples"] = _Checksum().of(value)
    for name in sorted(fields_of(value)):
        held = getattr(value, name, None)
        parts = [part for part in _datasets_in(held) if id(part) not in seen]
        for place, part in enumerate(parts):
            _note_object(part, f"{prefix}{name}." if len(parts) == 1 else f"{prefix}{name}[{place}].", found, seen)
        if not parts:
            found[f"{prefix}{name}"] = _Checksum().of(held)
    for name, held in _globals_read_by(type(value)):
        found[f"{name} (a global variable)"] = _Checksum().of(held)


def _datasets_in(value: Any) -> list[Any]:
    """Return the datasets in an attribute: the attribute itself, or the elements of a short list."""
    some = value if isinstance(value, list | tuple) and len(value) <= _MOST_DATASETS else [value]
    return [one for one in some if hasattr(type(one), "__getitem__") and hasattr(one, "__dict__") and _is_own(one)]


def _is_own(value: Any) -> bool:
    """Return whether an object is neither an array nor a plain collection."""
    return not _is_array(value) and not isinstance(value, Mapping | Set | list | tuple | deque)


def _globals_read_by(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the plain global variables that methods of a class read; samples may depend on them."""
    for known, names in _global_names(kind):
        for name in names:
            if isinstance(known.get(name, _SKIPPED), _PLAIN):
                yield name, known[name]


def _global_names(kind: type) -> list[tuple[dict[str, Any], list[str]]]:
    """Return (module variables, names of the global variables read) for each sample-loading method of a class."""
    functions = [getattr(kind, name, None) for name in ("__getitem__", "__getitems__", "__iter__", "__call__")]
    written = [one for one in functions if isinstance(one, FunctionType)]
    return [(one.__globals__, _names_read(one.__code__)) for one in written]


@functools.cache
def _names_read(code: CodeType) -> list[str]:
    """Return the names of the global variables that code reads; a cached function would keep the variables alive."""
    return sorted({step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"})


def _is_array(value: Any) -> bool:
    return hasattr(value, "nbytes") and hasattr(value, "tolist") and hasattr(value, "dtype")


class _Checksum:
    """Computes the checksum of one attribute; each object in it counts once."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}

    def of(self, value: Any, depth: int = 0) -> int:
        """Return the checksum of a value and its content."""
        if isinstance(value, _PLAIN):
            return _hash(value)
        if id(value) in self._seen or len(self._seen) > _MOST_VALUES or depth > _DEEPEST:
            return _hash(type(value).__qualname__)
        self._seen[id(value)] = value
        if isinstance(value, _SKIPPED) or _is_model(value):
            return _hash(type(value).__qualname__)
        if isinstance(value, _VALUES):
            return _hash(value)
        if (drawn := random_state(value)) is not None:
            return digest(drawn)
        return self._of_parts(value, depth)

    def _of_parts(self, value: Any, depth: int) -> int:
        if _is_array(value):
            return _of_array(value)
        if isinstance(value, Mapping | Set | list | tuple | deque):
            return self._of_collection(value, depth)
        return self._of_object(value, depth)

    def _of_collection(self, value: Any, depth: int) -> int:
        if isinstance(value, Set):
            parts = sorted(value, key=repr) if len(value) <= _MOST_ELEMENTS else []
        else:
            parts = list(value.items()) if isinstance(value, Mapping) else list(value)
        if len(parts) <= _MOST_ELEMENTS:
            return _mixed(len(value), *(self.of(part, depth + 1) for part in parts))
        try:
            return _mixed(len(value), hash(tuple(parts)))  # computed in C, for a long list of numbers, names or pairs
        except TypeError:
            some = parts[:: len(parts) // _MOST_ELEMENTS]
            return _mixed(len(value), *(self.of(part, depth + 1) for part in some))

    def _of_object(self, value: Any, depth: int) -> int:
        if type(value).__module__ in ("ctypes", "_ctypes", "multiprocessing.sharedctypes") and _has_bytes(value):
            return zlib.crc32(bytes(value))
        names = sorted(fields_of(value))
        return _mixed(_hash(type(value).__qualname__), *(self.of(getattr(value, n, None), depth + 1) for n in names))


def _has_bytes(value: Any) -> bool:
    try:
        memoryview(value)
    except TypeError:
        return False
    return True


def _is_model(value: Any) -> bool:
    """Return whether an object is a model or an optimizer, which change in each step."""
    return hasattr(value, "state_dict") and (hasattr(value, "parameters") or hasattr(value, "param_groups"))


def _of_array(value: Any) -> int:
    version = getattr(value, "_version", 0) if hasattr(value, "detach") else 0
    if value.nbytes > _MOST_BYTES:
        flat = value.reshape(-1)
        return _mixed(id(value), version, digest(flat[:: max(1, len(flat) // _MOST_ELEMENTS)]))
    return digest(value)


def _hash(value: Any) -> int:
    return hash((type(value).__name__, repr(value) if isinstance(value, float) else value))  # NaN != NaN


def _mixed(*values: int) -> int:
    return hash(values)
