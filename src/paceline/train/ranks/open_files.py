"""Files that the program has left open when a process ends at once.

Python writes what is buffered for open files when it ends, but `os._exit` and signals end a process without it. So
ranks call `write_files` before.
"""

from __future__ import annotations

import gc
import io
from typing import Any

_BUFFERED: Any = io.BufferedIOBase.__base__  # the class without `abc`, which may be gone when Python ends


def write_files(objects: Any = gc.get_objects, text: Any = io.TextIOWrapper, buffered: Any = _BUFFERED) -> None:
    """Write what is buffered for open files, because the process is about to end; close compressed files.

    The variables of this module may be gone, so the defaults hold all values that this function needs. `isinstance`
    would read the attribute `__class__` of all objects, and a `Later` then exchanges tensors.
    """
    for kind in (text, buffered):  # first text files, which write to the files inside them
        for each in objects():
            if issubclass(type(each), kind):
                is_compressed = kind is buffered and type(each).__module__ != "_io"  # the end of the data is missing
                try:
                    (each.close if is_compressed else each.flush)()
                except Exception:  # a file that is closed or only read, a file of another library, or a full disk
                    continue
