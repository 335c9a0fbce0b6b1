"""Writes with a timeout: if access to the record's folder hangs (a lost network drive), the program must not hang.

A write to such a folder cannot be interrupted, so it runs in a separate thread, which is abandoned if it does not
return. Hooks around forks and at exit write only in this way.

A thread is not abandoned as long as it uses a CPU core or waits for one. If Python exits while such a thread runs C++
code, the process aborts.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable
from typing import Any

PATIENCE_S = 2.0
_LONGEST_WAIT_S = 30.0  # for a thread that uses or waits for a CPU core
_LEAST_BUSY = 0.1  # share of the time in which a thread that does not hang uses or waits for a CPU core


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
    returned = acquire_from_thread(over, lambda: ids[0] if ids else 0, timeout_s)
    if raised:
        raise raised[0]
    return returned


def acquire_from_thread(over: Any, native_id: Callable[[], int], timeout_s: float) -> bool:
    """Acquire a lock that a thread releases at its end. Return False if the thread hangs.

    Args:
        over: The lock.
        native_id: Returns the kernel's id of the thread, or 0 before the thread has started.
        timeout_s: The time after which a thread hangs if it neither used a CPU core nor waited for one.
    """
    for _ in range(max(1, round(_LONGEST_WAIT_S / timeout_s))):
        before_s = _busy_s(native_id()) or 0.0  # None before the thread has started
        if over.acquire(timeout=timeout_s):
            return True
        now_s = _busy_s(native_id())
        if now_s is None or now_s - before_s < _LEAST_BUSY * timeout_s:
            return False
    return False


def _busy_s(native_id: int) -> float | None:
    """Return the time in which a thread used or waited for a CPU core, or None if the kernel does not report it."""
    try:
        with open(f"/proc/self/task/{native_id}/schedstat", encoding="ascii") as file:
            runs, waits, *_ = file.read().split()
    except (OSError, ValueError):
        return None
    return (int(runs) + int(waits)) * 1e-9
