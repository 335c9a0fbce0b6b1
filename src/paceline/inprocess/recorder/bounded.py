"""Writes with a timeout: if access to the record's folder hangs (a lost network drive), the program must not hang.

A write to such a folder cannot be interrupted, so it runs in a separate thread, which is abandoned if it does not
return. Hooks around forks and at exit write only in this way.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable

PATIENCE_S = 2.0


def run_bounded(action: Callable[[], None], timeout_s: float = PATIENCE_S) -> bool:
    """Run an action in a separate thread and return whether it returned in time.

    Raises:
        Exception: The exception of the action.
    """
    over = _thread.allocate_lock()
    over.acquire()
    raised: list[Exception] = []

    def act() -> None:
        try:
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
    returned = over.acquire(timeout=timeout_s)
    if raised:
        raise raised[0]
    return returned
