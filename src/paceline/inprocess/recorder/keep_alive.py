"""Objects that must never be freed in a process, such as CUDA events of the parent in a forked child.

After a fork the driver refuses every call in the child, and the release of an event or of pinned memory is such a call:
the allocator throws and the process aborts. A reference from a module is not enough, because modules are cleared at
the end of the interpreter.
"""

from __future__ import annotations

import ctypes
from typing import Any


def keep_forever(*objects: Any) -> None:
    """Keep objects and everything that they refer to until the process is gone, past the end of the interpreter.

    One reference is added that nobody gives back, so that neither garbage collection nor module teardown frees them.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(objects))
