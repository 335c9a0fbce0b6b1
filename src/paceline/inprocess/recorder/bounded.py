"""Writes with a time-out: where the record's folder hangs (a network drive that is gone), the program must not.

A write to such a folder cannot be interrupted, so it runs in a thread of its own, which is left behind if it does not
return. Hooks around forks and at exit write in this way only.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable

PATIENCE_S = 2.0


def run_bounded(action: Callable[[], None], timeout_s: float = PATIENCE_S) -> bool:
    """Run an action in a thread of its own; return whether it returned in time.

    Raises:
        Exception: What the action raised.
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
