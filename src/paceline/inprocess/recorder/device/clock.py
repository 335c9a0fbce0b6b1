"""The device clock: the times at which the device reaches the program's events, from device events that are read later.

A device runs its queued work later than the host. A device event recorded together with a program event gives the time
at which the device has finished all earlier work. The program events, with these device times, go through a second
state machine, whose slots give the time that the *device* spent on each phase of a step:

    host      |fetch|fwd|bwd|opt|            waits …           |fetch|fwd|bwd|opt|
    device          |---- forward ----|---- backward ----|-opt-|      |---- forward …

`Stamper` runs in the training thread, `DeviceClock` in the recorder's thread. Neither waits for the device. A step
counts only if each of its program events has a device event. The tests use a simulated device; a whole run was
seen on an H100 and an H200 (benchmarks/results/gpu-proof-*.json).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median
from time import perf_counter_ns
from typing import Any, Protocol

from paceline.inprocess.recorder.probe_state import BACKWARD, FORWARD, MADE_OPTIMIZER, OPTIMIZER, Moment
from paceline.inprocess.recorder.steps.state_machine import Automaton, StepRow

_WINDOW = 8  # consecutive steps that are timed in one window
_COST_SHARE = 0.002  # upper limit of the recording time of the training thread, as a share of step time
_LONGEST_PERIOD = 4096  # most steps from one window to the next
_ENOUGH = 64  # events that are needed to estimate the cost of one
_MOST_OUTSTANDING = 4096
_LAG_OF = {FORWARD + 1: "forward", BACKWARD + 1: "backward", OPTIMIZER + 1: "optimizer"}
_LAG_FOR_NS = 10_000_000_000  # the two clocks drift apart by tens of µs per second: lags are only recorded this long
_WARM_ROWS = 3
_MOST_LAGS = 2000


class EventSource(Protocol):
    """The timing events of a device. The training thread calls `record`, the recorder the rest. No call may block."""

    def ready(self) -> bool:
        """Return whether an event can be recorded now."""

    def use(self, index: int) -> None:
        """Use the device with this number from now on."""

    def record(self, *, working: bool = True) -> Any:
        """Record an event on the computing stream and return it. `working`: whether this stream is current."""

    def query(self, event: Any) -> bool:
        """Return whether the device has passed the event."""

    def elapsed_ns(self, earlier: Any, later: Any) -> int | None:
        """Return the time between two passed events, or None if they cannot be compared."""

    def recycle(self, event: Any) -> None:
        """Take back an event for reuse."""


class Timed(tuple[Any, ...]):
    """A program event together with the device event that was recorded with it."""

    event: Any


class Stamper:
    """Appends program events in the training thread, and records device events during some windows of steps.

    Windows are spaced so that the cost stays small.
    """

    def __init__(self, source: EventSource, append: Callable[[Moment], None]) -> None:
        self._source = source
        self._append = append
        self._sampling = False
        self._by_optimizer = False  # whether steps end with an optimizer step (once one was seen) or a backward
        self.ends = 0  # number of step ends, over all optimizers
        self.period = 8 * _WINDOW  # steps between the starts of two windows
        self.recorded = 0
        self.spent_ns = 0
        self.timed_ends = 0
        self.resolved = 0  # incremented by the recorder
        self.off: str | None = None  # the reason if recording of device events has stopped

    def put(self, moment: Moment) -> None:
        """Append a program event."""
        code = moment[1]
        place = -1  # position of the step in the window if a step ends
        if code == OPTIMIZER + 1 or (code == BACKWARD + 1 and not self._by_optimizer):
            place = self._begin_step(code)
        if self._sampling and code != MADE_OPTIMIZER:
            moment = self._timed(moment)
            self.timed_ends += place >= 0
        self._append(moment)
        if place >= _WINDOW:
            self._sampling = False

    def _begin_step(self, code: int) -> int:
        """Count a step; start timing if a window of timed steps begins. Return the steps since the window began."""
        self._by_optimizer |= code == OPTIMIZER + 1
        place = self.ends % self.period
        self.ends += 1
        if place == 0:
            self._sampling = self.off is None
        return place

    def _timed(self, moment: Moment) -> Moment:
        """Return the program event with a device event, or unchanged if the device is not ready or is far behind."""
        begun = perf_counter_ns()
        try:
            if self.recorded - self.resolved > _MOST_OUTSTANDING or not self._source.ready():
                return moment
            timed = Timed(moment)
            timed.event = self._source.record(working=FORWARD <= moment[1] <= OPTIMIZER + 1)
        except Exception as error:  # the error must not reach the program, which is timed by the host from now on
            self.stop(error)
            return moment
        self.recorded += 1
        self.spent_ns += perf_counter_ns() - begun
        return timed

    def stop(self, error: Exception) -> None:
        """Stop recording device events because of an error."""
        self._sampling = False
        self.off = self.off or f"{type(error).__name__}: {error}"

    @property
    def cost_s(self) -> float | None:
        """Mean cost of recording one device event, in seconds; None before the first event."""
        return self.spent_ns / self.recorded / 1e9 if self.recorded else None

    def tune(self, step_ns: float) -> None:
        """Set the interval between windows so that recording takes at most 0.2% of the time."""
        if self.recorded < _ENOUGH or not self.timed_ends or step_ns <= 0:
            return
        share = self.spent_ns / self.timed_ends / step_ns
        self.period = max(1, min(_LONGEST_PERIOD, round(_WINDOW * share / _COST_SHARE)))


class DeviceClock:
    """Runs a second state machine on the program events, with the times at which the device reached them.

    `rows` gets an entry for each step: the ns of each phase of the step, or None if an event had no device time.
    """

    def __init__(self, source: EventSource, stamper: Stamper) -> None:
        self._source = source
        self._stamper = stamper
        self._waiting: deque[Moment] = deque()
        self._automaton = Automaton(self._on_row)
        self._now = 0  # device time in ns of the host's clock, up to a constant
        self._origin: int | None = None
        self._last: Any = None  # the last passed device event
        self._whole = False  # whether every program event since the start of the step had a device event
        self._moment_timed = False
        self._count = 0
        self._lags: dict[str, list[int]] = {name: [] for name in _LAG_OF.values()}
        self._least_lag: int | None = None
        self.timed_steps = 0
        self.rows: deque[tuple[int, ...] | None] = deque()

    def take(self, moment: Moment) -> None:
        """Store a program event that the host's state machine has processed."""
        self._waiting.append(moment)

    def poll(self) -> None:
        """Give the program events to the state machine, in order, up to the first that the device has not passed."""
        while self._waiting:
            event = getattr(self._waiting[0], "event", None)
            if event is not None and self._stamper.off is None and not self._passed(event):
                return
            self._follow(self._waiting.popleft(), event)

    @property
    def is_idle(self) -> bool:
        """Whether the device has passed all recorded events."""
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
        """Advance the clock to the time of a device event; return False if the time since the last event is unknown."""
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
        if row.end_ns == self._now:  # else events of the next step were processed already and are in `_whole`
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
        """Return, for each phase, the median number of seconds by which the device ends the phase later than the host.

        Device times are known only up to a constant, so the smallest delay seen is subtracted.
        """
        least = self._least_lag or 0
        return {name: (median(lags) - least) / 1e9 for name, lags in self._lags.items() if lags}

    @property
    def lag_count(self) -> int:
        """Return the number of measured delays of the phase that has most of them."""
        return max(len(lags) for lags in self._lags.values())
