"""Objects that a process must never free, such as the parent's CUDA events in a forked child.

After a fork the driver refuses every call in the child. Freeing an event or pinned memory is such a call: the allocator
throws and the process aborts. A reference from a module does not suffice, because the interpreter clears modules when
it exits.
"""

from __future__ import annotations

import ctypes
from typing import Any


def keep_forever(*objects: Any) -> None:
    """Keep objects and everything that they refer to until the process ends, also during interpreter exit.

    One reference is added and never released, so neither garbage collection nor module teardown frees the objects.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(objects))
