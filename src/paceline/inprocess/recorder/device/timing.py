"""Device timing: one object that connects the parts of device timing to the recorder. A CPU has no device timing.

The path of a program event and of a loss:

    training thread   put(moment) ──> device event (Stamper)            loss ──> pinned slot (Losses)
    recorder          take(moment) ─> the device's state machine (DeviceClock) ──> HeldRows ──> disk
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from paceline.inprocess import hooks
from paceline.inprocess.recorder.device import graphs
from paceline.inprocess.recorder.device.clock import DeviceClock, EventSource, Stamper
from paceline.inprocess.recorder.device.cuda_events import CudaEvents, Losses, pinned_slots
from paceline.inprocess.recorder.device.side_copies import OverlappedCopies
from paceline.inprocess.recorder.probe_state import gate
from paceline.inprocess.recorder.steps.row_buffer import HeldRows, Written

_PATIENCE_AT_END_S = 0.1
_TUNE_S = 0.4


class Timing:
    """Records events on a device, and delays each row until the device has reached its events."""

    def __init__(
        self,
        source: EventSource,
        losses: Losses,
        write: Callable[[Written], None],
        copies: OverlappedCopies | None = None,
    ) -> None:
        self._source = source
        self._losses = losses
        self._copies = copies
        self._stamper = Stamper(source, gate.moments.append)
        self._clock = DeviceClock(source, self._stamper)
        self._held = HeldRows(write)
        self._installed = False
        self._next_tune = 0.0
        self._usual_ns = 0.0
        self.rows = 0  # rows since the installation
        self.take = self._clock.take

    def hold(self, written: Written) -> None:
        """Store a row that the host's state machine has finished, until the device times of the step are known."""
        wall_ns = written.row.wall_ns
        self._usual_ns = wall_ns if not self._usual_ns else self._usual_ns + 0.1 * (wall_ns - self._usual_ns)
        self.rows += self._installed
        self._held.hold(written, time.monotonic())

    def turn(self) -> None:
        """Install the hooks once the device is in use, match rows with its times, and write the rows that are ready."""
        if not self._installed and self._source.ready() and not hooks.faulted():
            self._install()
        self._follow()
        now = time.monotonic()
        self._held.release(now)
        if now >= self._next_tune:
            self._stamper.tune(self._usual_ns / self.ends_per_row)
            self._next_tune = now + _TUNE_S

    def finish(self) -> None:
        """Wait at most 0.1 s for the device at the end of the program, then write all remaining rows."""
        until = time.monotonic() + _PATIENCE_AT_END_S
        self._follow()
        while not self._clock.is_idle and time.monotonic() < until:
            time.sleep(0.01)
            self._follow()
        self._held.release(time.monotonic(), everything=True)

    def as_json(self) -> dict[str, Any]:
        """Return the number of timed steps, the cost of the events, and how far the device is behind the host."""
        return {
            "timed_steps": self._clock.timed_steps,
            "events": self._stamper.recorded,
            "event_cost_s": self._stamper.cost_s,
            "period": self._stamper.period,
            "lag_s": self._clock.lags_s(),
            "lag_count": self._clock.lag_count,
            "off": self._stamper.off,
            "overlapped_copies": self._copies.as_json() if self._copies is not None else None,
        }

    @property
    def waiting(self) -> int:
        """Number of recorded CUDA events that the device is not yet known to have passed."""
        return self._stamper.recorded - self._stamper.resolved

    @property
    def ends_per_row(self) -> int:
        """Optimizer steps per step row, at least 1."""
        return max(1, round(self._stamper.ends / self.rows)) if self.rows else 1

    def _install(self) -> None:
        self._installed = True
        gate.put = self._stamper.put
        gate.take_loss = self._losses.take
        gate.copies = self._copies
        hooks.on_undo(_uninstall)

    def _follow(self) -> None:
        self._clock.poll()
        if self._copies is not None:
            self._copies.poll()
        rows = self._clock.rows
        while rows:
            self._held.match(rows.popleft())


def _uninstall() -> None:
    gate.put = gate.moments.append
    gate.take_loss = gate.copies = None


def cuda_timing(
    torch: Any, events: CudaEvents, write: Callable[[Written], None], before_capture: Callable[[], None]
) -> Timing:
    """Return the timing of a process that uses CUDA; `before_capture` is called just before a graph capture."""
    graphs.patch(torch, events, before_capture)
    return Timing(events, Losses(events, pinned_slots(torch)), write, OverlappedCopies(events))
