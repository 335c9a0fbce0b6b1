"""How does a sampler come to its turn while the program computes in Python? By a shorter switch interval meanwhile.

A thread that wakes up waits for the interpreter's lock until its holder calls into C, or for the switch interval of 5
ms. So it would see the program inside of C calls only, and functions that compute in Python for less than 5 ms never.
While a sampler waits, the interval is 1 ms, or 10 µs if the program has one thread. It matters to nobody but threads
that want the lock at the same time; after enough samples it is left alone but for one turn in ten.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

_PROMPT_S = 0.001
_PROMPT_ALONE_S = 0.00001  # in a program with one thread, which the sampler alone can interrupt
_ALWAYS_FOR = 1500  # turns
_THEN_EVERY = 10


class Prompt:
    """Waits between a sampler's turns."""

    def __init__(self) -> None:
        self._turns = 0

    def wait(self, wait: Callable[[], bool | None]) -> bool:
        """Return what `wait` returns; when it is over, the lock is had soon."""
        self._turns += 1
        if self._turns > _ALWAYS_FOR and self._turns % _THEN_EVERY:
            return bool(wait())
        usual, prompt = sys.getswitchinterval(), _prompt_s()
        if usual <= prompt:
            return bool(wait())
        sys.setswitchinterval(prompt)
        try:
            return bool(wait())
        finally:
            if abs(sys.getswitchinterval() - prompt) < 1e-9:  # unless the program has set its own meanwhile
                sys.setswitchinterval(usual)


def _prompt_s() -> float:
    """Return the interval while the sampler waits; without a lock, which a thread of the program may hold."""
    threads = getattr(threading, "_active", None)
    return _PROMPT_ALONE_S if threads is not None and len(threads) <= 1 else _PROMPT_S
