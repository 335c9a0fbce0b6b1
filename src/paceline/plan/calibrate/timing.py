"""Timing of short work: repeat the work, and drop the repetitions that another process disturbed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

try:
    import resource
except ModuleNotFoundError:  # Windows: `hardware.operating_system` reports that this is not supported
    resource = None  # type: ignore[assignment]

_LEAST = 5  # repetitions
_KEPT = 3  # least number of undisturbed repetitions for a median
_MOST = 2000
_DRIFT = 0.3  # seconds after which the reference is measured again


@dataclass(frozen=True, kw_only=True)
class WorkTiming:
    """The median and the quartiles of the seconds per repetition.

    Attributes:
        count: Number of repetitions that the result is computed from.
        disturbed: Share of repetitions in which another process took a core.
    """

    seconds: float
    low: float
    high: float
    count: int
    disturbed: float


def time_work(work: Callable[[], Any], wait: Callable[[], None], spend_s: float) -> WorkTiming:
    """Return the seconds per repetition of some work.

    Repetitions with an involuntary context switch are dropped if enough others are left.

    Args:
        work: The function to repeat.
        wait: Function that waits until the device has finished all work.
        spend_s: Time budget in seconds; at least `_LEAST` repetitions are made.
    """
    work()
    wait()
    clean: list[float] = []
    disturbed: list[float] = []
    begun = time.perf_counter()
    while len(clean) + len(disturbed) < _MOST:
        before, at = switches(), time.perf_counter()
        work()
        wait()
        now = time.perf_counter()
        (clean if switches() == before else disturbed).append(now - at)
        if (
            now - begun > spend_s
            and (len(clean) >= _LEAST or now - begun > 4 * spend_s)
            and len(clean + disturbed) >= 3
        ):
            break
    kept = clean if len(clean) >= _KEPT else clean + disturbed
    low, _, high = quantiles(kept, n=4)
    share = len(disturbed) / len(clean + disturbed)
    return WorkTiming(seconds=median(kept), low=low, high=high, count=len(kept), disturbed=share)


def switches() -> int:
    """Return the number of involuntary context switches of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


class ReferenceSpeed:
    """Tracks the speed of the machine over time by timing a matrix product."""

    def __init__(self, work: Callable[[], Any], wait: Callable[[], None]) -> None:
        self.work, self.wait = work, wait
        self._at = 0.0
        self.seen: list[float] = []

    def now(self) -> float:
        """Return the seconds of the product, which is timed again if the last timing is older than `_DRIFT` seconds."""
        if not self.seen or time.perf_counter() - self._at > _DRIFT:
            self.seen.append(time_work(self.work, self.wait, 0.01).seconds)
            self._at = time.perf_counter()
        return self.seen[-1]
