"""Writes with a timeout: if access to the record's folder hangs (a lost network drive), the program must not hang.

A write to such a folder cannot be interrupted, so it runs in a separate thread, which is abandoned if it does not
return. Hooks around forks and at exit write only in this way. A thread that works, or that waits for a processor on a
busy machine, does not hang: it is not abandoned. Python aborts the process at its end if a thread is in C++ code then.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable
from typing import Any

PATIENCE_S = 2.0
_MOST_S = 30.0  # of a wait for a thread that works
_WORKS = 0.1  # share of the time in which a thread runs, or waits for a processor, if it does not hang


def run_bounded(action: Callable[[], None], timeout_s: float = PATIENCE_S) -> bool:
    """Run an action in a separate thread and return whether it returned in time.

    Raises:
        Exception: The exception of the action.
    """
    over = _thread.allocate_lock()
    over.acquire()
    raised: list[Exception] = []
    ids: list[int] = []

    def act() -> None:
        try:
            ids.append(_thread.get_native_id())
            action()
        except Exception as error:
            raised.append(error)
        finally:
            over.release()

    try:
        _thread.start_new_thread(act, ())
    except RuntimeError:  # Python 3.12.0 starts no thread at exit
        action()
        return True
    returned = acquired(over, lambda: ids[0] if ids else 0, timeout_s)
    if raised:
        raise raised[0]
    return returned


def acquired(over: Any, native_id: Callable[[], int], timeout_s: float) -> bool:
    """Acquire a lock that a thread releases at its end, and return whether it did so in time.

    Args:
        over: The lock.
        native_id: Returns the kernel's id of the thread.
        timeout_s: The longest wait for a thread that hangs; the wait for a thread that works is longer.
    """
    for _ in range(max(1, round(_MOST_S / timeout_s))):
        before_s = _busy_s(native_id()) or 0.0  # the thread may not have begun
        if over.acquire(timeout=timeout_s):
            return True
        now_s = _busy_s(native_id())
        if now_s is None or now_s - before_s < _WORKS * timeout_s:
            return False
    return False


def _busy_s(native_id: int) -> float | None:
    """Return the seconds in which a thread ran or waited for a processor; None if the kernel does not report them."""
    try:
        with open(f"/proc/self/task/{native_id}/schedstat", encoding="ascii") as file:
            runs, waits, *_ = file.read().split()
    except (OSError, ValueError):
        return None
    return (int(runs) + int(waits)) * 1e-9
