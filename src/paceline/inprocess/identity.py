"""A map from the user's objects to values by identity. It works for unhashable objects and keeps no object alive."""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class IdentityMap(Generic[Value]):
    """Values for objects by ``id``. An entry is valid only while its object lives."""

    __slots__ = ("_full", "entries")

    def __init__(self) -> None:
        self.entries: dict[int, tuple[Any, Value]] = {}  # never replaced: hot paths read this dict directly
        self._full = 4096  # number of entries above which the entries of dead objects are dropped

    def get(self, key: object) -> Value | None:
        """Return the value for this object (compared by identity), or None."""
        entry = self.entries.get(id(key))
        return entry[1] if entry is not None and entry[0]() is key else None

    def set(self, key: object, value: Value) -> Value:
        """Store a value for this object and return the value."""
        if len(self.entries) > self._full:
            for number in list(self.entries):
                entry = self.entries.get(number)
                if entry is not None and entry[0]() is None:
                    self.entries.pop(number, None)
            self._full = max(4096, 2 * len(self.entries))
        self.entries[id(key)] = (weakref.ref(key), value)
        return value

    def drop_with(self, key: object) -> None:
        """Drop the value of this object as soon as the object is freed; for values that use much memory."""
        weakref.finalize(key, self.entries.pop, id(key), None).atexit = False
