"""What do we know about an object of the user's? A map by identity that needs no hash and keeps nothing alive."""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class IdentityMap(Generic[Value]):
    """Values for objects, by ``id``; an entry counts only while its object lives."""

    __slots__ = ("_full", "entries")

    def __init__(self) -> None:
        self.entries: dict[int, tuple[Any, Value]] = {}  # never replaced; the hot path looks here itself
        self._full = 4096  # entries beyond which those of objects that are gone are dropped

    def get(self, key: object) -> Value | None:
        """Return the value for this very object, or None."""
        entry = self.entries.get(id(key))
        return entry[1] if entry is not None and entry[0]() is key else None

    def set(self, key: object, value: Value) -> Value:
        """Remember a value for this very object and return it."""
        if len(self.entries) > self._full:
            for number in list(self.entries):
                entry = self.entries.get(number)
                if entry is not None and entry[0]() is None:
                    self.entries.pop(number, None)
            self._full = max(4096, 2 * len(self.entries))
        self.entries[id(key)] = (weakref.ref(key), value)
        return value

    def drop_with(self, key: object) -> None:
        """Drop the value of this object, which may hold much memory, as soon as the object is gone."""
        weakref.finalize(key, self.entries.pop, id(key), None).atexit = False
