"""The switch-interval guard: a shorter switch interval lets a sampler run while the program computes in Python.

A thread that wakes up waits for the GIL until its holder calls into C, or for the switch interval of 5 ms. A sampler
would therefore see the program only inside C calls, and would never see functions that compute in Python for less than
5 ms. While a sampler waits, the interval is 1 ms, or 10 µs if the program has one thread. The shorter interval affects
only threads that wait for the GIL at the same time. After enough samples, the shorter interval is used in only one of
ten waits.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

_PROMPT_S = 0.001
_PROMPT_ALONE_S = 0.00001  # if the program has one thread, which only the sampler can interrupt
_ALWAYS_FOR = 1500  # waits
_THEN_EVERY = 10


class Prompt:
    """Waits between the samples of a sampler, with a short switch interval."""

    def __init__(self) -> None:
        self._turns = 0

    def wait(self, wait: Callable[[], bool | None]) -> bool:
        """Call `wait` and return its result. A short switch interval lets this thread get the GIL soon afterwards."""
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
            if abs(sys.getswitchinterval() - prompt) < 1e-9:  # unless the program has set another interval
                sys.setswitchinterval(usual)


def _prompt_s() -> float:
    """Return the switch interval to use while the sampler waits. It takes no lock, which another thread may hold."""
    threads = getattr(threading, "_active", None)
    return _PROMPT_ALONE_S if threads is not None and len(threads) <= 1 else _PROMPT_S
