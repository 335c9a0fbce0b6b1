"""When did the device reach each moment? Events beside the moments, resolved later; nobody ever waits for one.

A device works through its queue behind the host. An event put into the queue at a moment says, once it is through,
when the device was done with all that came before. The same moments, at the device's times, go through a second
automaton, and its slots say what the *device* spent the step on:

    host      |fetch|fwd|bwd|opt|            waits …           |fetch|fwd|bwd|opt|
    device          |---- forward ----|---- backward ----|-opt-|      |---- forward …

`Stamper` runs on the training thread, `DeviceClock` on the recorder's. Only whole steps count whose every moment has an
event. No GPU has been seen by the authors of this file: it is tested against a device that is played.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median
from time import perf_counter_ns
from typing import Any, Protocol

from paceline.inprocess.recorder.probe_state import BACKWARD, FORWARD, MADE_OPTIMIZER, OPTIMIZER, Moment
from paceline.inprocess.recorder.steps.state_machine import Automaton, StepRow

_WINDOW = 8  # consecutive steps that are timed
_COST_SHARE = 0.002  # of step time, that recording may take of the training thread
_LONGEST_PERIOD = 4096  # steps from one window to the next, at most
_ENOUGH = 64  # events from which on their cost is known
_MOST_OUTSTANDING = 4096
_LAG_OF = {FORWARD + 1: "forward", BACKWARD + 1: "backward", OPTIMIZER + 1: "optimizer"}
_LAG_FOR_NS = 10_000_000_000  # the two clocks drift apart by tens of µs a second: lags are only taken so long
_WARM_ROWS = 3
_MOST_LAGS = 2000


class EventSource(Protocol):
    """A device's events. `record` is called by the training thread, the others by the recorder; none may wait."""

    def ready(self) -> bool:
        """Say whether an event can be recorded now."""

    def use(self, index: int) -> None:
        """Record on the device of this number from here on."""

    def record(self, *, working: bool = True) -> Any:
        """Put an event into the queue that computes and return it; `working` says that it is the current one."""

    def query(self, event: Any) -> bool:
        """Say whether the device has passed the event."""

    def elapsed_ns(self, earlier: Any, later: Any) -> int | None:
        """Return the time between two events that were passed; None when they cannot be compared."""

    def recycle(self, event: Any) -> None:
        """Take back an event that is no longer needed."""


class Timed(tuple[Any, ...]):
    """A moment with the event that was recorded at it."""

    event: Any


class Stamper:
    """Notes moments for the training thread, with events in windows of steps; they cost next to nothing."""

    def __init__(self, source: EventSource, append: Callable[[Moment], None]) -> None:
        self._source = source
        self._append = append
        self._sampling = False
        self._by_optimizer = False  # steps end with an optimizer; before any was seen, with a backward
        self.ends = 0  # of steps, of each optimizer
        self.period = 8 * _WINDOW  # steps from the beginning of one window to that of the next
        self.recorded = 0
        self.spent_ns = 0
        self.timed_ends = 0
        self.resolved = 0  # counted up by the recorder
        self.off: str | None = None  # why no event is recorded any more

    def put(self, moment: Moment) -> None:
        """Note a moment."""
        code = moment[1]
        place = -1  # in the window, when a step ends
        if code == OPTIMIZER + 1 or (code == BACKWARD + 1 and not self._by_optimizer):
            place = self._begin_step(code)
        if self._sampling and code != MADE_OPTIMIZER:
            moment = self._timed(moment)
            self.timed_ends += place >= 0
        self._append(moment)
        if place >= _WINDOW:
            self._sampling = False

    def _begin_step(self, code: int) -> int:
        """Count a step and open the window when one is due; return the place of the step in it."""
        self._by_optimizer |= code == OPTIMIZER + 1
        place = self.ends % self.period
        self.ends += 1
        if place == 0:
            self._sampling = self.off is None
        return place

    def _timed(self, moment: Moment) -> Moment:
        """Return the moment with an event; without one when the device cannot take it, or is far behind."""
        begun = perf_counter_ns()
        try:
            if self.recorded - self.resolved > _MOST_OUTSTANDING or not self._source.ready():
                return moment
            timed = Timed(moment)
            timed.event = self._source.record(working=FORWARD <= moment[1] <= OPTIMIZER + 1)
        except Exception as error:  # never the program's trouble: it is timed by the host from here on
            self.stop(error)
            return moment
        self.recorded += 1
        self.spent_ns += perf_counter_ns() - begun
        return timed

    def stop(self, error: Exception) -> None:
        """Record no more events."""
        self._sampling = False
        self.off = self.off or f"{type(error).__name__}: {error}"

    @property
    def cost_s(self) -> float | None:
        """What recording one event takes, in seconds; None before any was recorded."""
        return self.spent_ns / self.recorded / 1e9 if self.recorded else None

    def tune(self, step_ns: float) -> None:
        """Set the windows so far apart that recording takes at most 0.2% of the time."""
        if self.recorded < _ENOUGH or not self.timed_ends or step_ns <= 0:
            return
        share = self.spent_ns / self.timed_ends / step_ns
        self.period = max(1, min(_LONGEST_PERIOD, round(_WINDOW * share / _COST_SHARE)))


class DeviceClock:
    """Follows the moments at the device's pace. `rows` gets one entry a step: its slots in ns, or None."""

    def __init__(self, source: EventSource, stamper: Stamper) -> None:
        self._source = source
        self._stamper = stamper
        self._waiting: deque[Moment] = deque()
        self._automaton = Automaton(self._on_row)
        self._now = 0  # of the device, in the host's ns give or take a constant
        self._origin: int | None = None
        self._last: Any = None  # the event passed last
        self._whole = False  # every moment since the step began had an event
        self._moment_timed = False
        self._count = 0
        self._lags: dict[str, list[int]] = {name: [] for name in _LAG_OF.values()}
        self._least_lag: int | None = None
        self.timed_steps = 0
        self.rows: deque[tuple[int, ...] | None] = deque()

    def take(self, moment: Moment) -> None:
        """Take a moment that the host's automaton has been fed."""
        self._waiting.append(moment)

    def poll(self) -> None:
        """Follow the device as far as it has come."""
        while self._waiting:
            event = getattr(self._waiting[0], "event", None)
            if event is not None and self._stamper.off is None and not self._passed(event):
                return
            self._follow(self._waiting.popleft(), event)

    @property
    def is_idle(self) -> bool:
        """Whether the device has reached all recorded events."""
        return not self._waiting

    def _passed(self, event: Any) -> bool:
        try:
            return self._source.query(event)
        except Exception as error:
            self._stamper.stop(error)
            return True

    def _follow(self, moment: Moment, event: Any) -> None:
        timed = event is not None and self._stamper.off is None and self._come_to(moment, event)
        if moment[1] != MADE_OPTIMIZER:
            self._whole &= timed
        self._moment_timed = timed
        self._automaton.feed((self._now, *moment[1:]))
        if timed:
            self._note_lag(moment)

    def _come_to(self, moment: Moment, event: Any) -> bool:
        """Move to the time of an event; say whether its distance from the one before is known."""
        last, self._last = self._last, event
        self._stamper.resolved += 1
        if last is None:
            self._now = self._origin = moment[0]
            return True
        try:
            elapsed = self._source.elapsed_ns(last, event)
            self._source.recycle(last)
        except Exception as error:
            self._stamper.stop(error)
            return False
        if elapsed is None:
            return False
        self._now += elapsed
        return True

    def _on_row(self, row: StepRow) -> None:
        self._count += 1
        self.timed_steps += self._whole
        self.rows.append(row.slots_ns if self._whole else None)
        if row.end_ns == self._now:  # else moments of the next step have been seen already: they keep their say
            self._whole = self._moment_timed

    # -- how far behind the host ------------------------------------------------------------------------

    def _note_lag(self, moment: Moment) -> None:
        name = _LAG_OF.get(moment[1])
        behind = self._now - moment[0]
        self._least_lag = behind if self._least_lag is None else min(self._least_lag, behind)
        if name is None or self._count < _WARM_ROWS or self._now - (self._origin or 0) > _LAG_FOR_NS:
            return
        if len(self._lags[name]) < _MOST_LAGS:
            self._lags[name].append(behind)

    def lags_s(self) -> dict[str, float]:
        """Return how far the device is behind the host when a phase ends on the host, in seconds (medians)."""
        least = self._least_lag or 0
        return {name: (median(lags) - least) / 1e9 for name, lags in self._lags.items() if lags}

    @property
    def lag_count(self) -> int:
        """How many lags were taken of the kind that has most."""
        return max(len(lags) for lags in self._lags.values())
