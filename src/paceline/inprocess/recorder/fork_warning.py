"""Suppress the warning of Python 3.12 and later about forks in a multi-threaded process if only the recorder causes it.

The recorder's thread ends before a fork. But Python counts the threads of the process after the fork: the ending thread
or its successor would cause a warning that the program alone does not cause.
"""

from __future__ import annotations

import os
import re
import sys
import warnings

_TEXT = re.compile(r"This process \(pid=\d+\) is multi-threaded, use of fork")
_FILTER = ("ignore", _TEXT, DeprecationWarning, None, 0)
_SINCE = (3, 12)
_TASKS = "/proc/self/task"


def before_fork(recorder: int) -> None:
    """Suppress the warning of the next fork if the process has only this thread and the recorder's; else allow it.

    The filter stays until the next fork. It is inserted without `warnings.filterwarnings`, which would make all
    warnings that were already shown appear again.

    Args:
        recorder: The kernel's id of the recorder's thread; 0 if there is none.
    """
    if tuple(sys.version_info[:2]) < _SINCE:
        return
    for held in [one for one in warnings.filters if one is _FILTER]:
        warnings.filters.remove(held)  # type: ignore[attr-defined]
    if recorder and _threads_without(recorder) == 1:
        warnings.filters.insert(0, _FILTER)  # type: ignore[attr-defined]


def _threads_without(recorder: int) -> int | None:
    """Return the number of threads other than the recorder's, or None if the threads cannot be listed."""
    try:
        return len(set(os.listdir(_TASKS)) - {str(recorder)})
    except OSError:
        return None
