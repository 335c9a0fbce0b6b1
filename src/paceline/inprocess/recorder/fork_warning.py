"""Python 3.12 and later warn if a process with several threads forks. The recorder's thread alone is no reason to.

The recorder's thread ends before a fork. But Python counts the threads of the process after the fork: the thread that
is about to leave, or its successor, would bring a warning that the program does not bring by itself.
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
    """Hide the warning of the fork that comes if no thread but the recorder's and this one is there; else show it.

    The filter stays until the next fork decides anew. It is put in place without `warnings.filterwarnings`, which
    would make all warnings that were shown once appear again.

    Args:
        recorder: Number by which the kernel knows the recorder's thread; 0: there is none.
    """
    if tuple(sys.version_info[:2]) < _SINCE:
        return
    for held in [one for one in warnings.filters if one is _FILTER]:
        warnings.filters.remove(held)  # type: ignore[attr-defined]
    if recorder and _threads_without(recorder) == 1:
        warnings.filters.insert(0, _FILTER)  # type: ignore[attr-defined]


def _threads_without(recorder: int) -> int | None:
    """Return how many threads the process has without the recorder's; None where they cannot be listed."""
    try:
        return len(set(os.listdir(_TASKS)) - {str(recorder)})
    except OSError:
        return None
