"""Timing of short work: many repetitions, without those that another process disturbed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

try:
    import resource
except ModuleNotFoundError:  # Windows: `hardware.operating_system` says that what needs it does not work there
    resource = None  # type: ignore[assignment]

_LEAST = 5  # repetitions
_KEPT = 3  # that there must be for a median
_MOST = 2000
_DRIFT = 0.3  # s after which the reference is measured again


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds of one repetition: median and quartiles.

    Attributes:
        count: Repetitions that counted.
        disturbed: Share of the repetitions in which another process was given a core of ours.
    """

    seconds: float
    low: float
    high: float
    count: int
    disturbed: float


def time_work(work: Callable[[], Any], wait: Callable[[], None], spend_s: float) -> Timing:
    """Time some work.

    Repetitions in which a thread of ours was put off a core against its will are left out, where enough are left.

    Args:
        work: Is called over and over.
        wait: Waits until the device has done all of it.
        spend_s: To spend, at least on `_LEAST` repetitions.
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
    return Timing(seconds=median(kept), low=low, high=high, count=len(kept), disturbed=share)


def switches() -> int:
    """Return how often a thread of this process was put off a core against its will."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


class ReferenceSpeed:
    """How fast is the machine now, against the middle of the whole calibration? A product of matrices tells."""

    def __init__(self, work: Callable[[], Any], wait: Callable[[], None]) -> None:
        self.work, self.wait = work, wait
        self._at = 0.0
        self.seen: list[float] = []

    def now(self) -> float:
        """Return seconds of the reference, measured again when the last time was a while ago."""
        if not self.seen or time.perf_counter() - self._at > _DRIFT:
            self.seen.append(time_work(self.work, self.wait, 0.01).seconds)
            self._at = time.perf_counter()
        return self.seen[-1]
