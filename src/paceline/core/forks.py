"""Objects of a process that its forked children must not free.

The CUDA driver refuses every call in a forked child, and freeing pinned memory or an event is such a call: torch raises
in the destructor and the child aborts. Threads do not exist in the child, so it cannot end what they serve either.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any
from weakref import WeakSet

_of_this_process: WeakSet[Any] = WeakSet()


def keep_in_children(one: Any) -> None:
    """Have every forked child keep an object, and all that it refers to, until the child is gone.

    Args:
        one: Must be hashable and support weak references. In this process it is freed as usual.
    """
    _of_this_process.add(one)


def _keep_forever() -> None:
    """Add a reference that is never given back, because the interpreter clears all modules when it ends."""
    objects = tuple(_of_this_process)
    _of_this_process.clear()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(objects))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_forever)
