"""Objects that a forked child must not free.

The CUDA driver refuses every call in a forked child. Freeing pinned memory or a CUDA event is such a call: torch raises
in the destructor and the child aborts. Threads do not exist in the child either, so an object whose thread is missing
cannot shut down there.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any
from weakref import WeakSet

_of_this_process: WeakSet[Any] = WeakSet()


def keep_in_children(one: Any) -> None:
    """Prevent forked children from freeing an object and all objects that it refers to.

    Args:
        one: The object. It must be hashable and support weak references. This process frees it as usual.
    """
    _of_this_process.add(one)


def _keep_forever() -> None:
    """Add a permanent reference to the objects: references from modules are cleared when the interpreter exits."""
    objects = tuple(_of_this_process)
    _of_this_process.clear()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(objects))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_forever)
