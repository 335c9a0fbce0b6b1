"""A buffer of step rows that wait for the device's times, and for losses that are being copied to the host.

If the device is too far behind, a row is written with the host's times: at most 64 rows wait, and each waits at most
half a second or four steps, whichever is longer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from paceline.inprocess.recorder.steps.parts import StepRow
from paceline.record.layout import FLAG_DEVICE_TIMED, FLAG_LOSS

_MOST_ROWS = 64
_LEAST_WAIT_S = 0.5
_STEPS_TO_WAIT = 4


class Written(NamedTuple):
    """A row that is to be written to disk."""

    step: int  # number of the step
    row: StepRow
    flags: int
    loss: float
    device_bytes: float


class _Held:
    __slots__ = ("due_s", "flags", "matched", "row", "slots", "written")

    def __init__(self, written: Written, due_s: float) -> None:
        self.written = written
        self.due_s = due_s
        self.matched = False  # whether the device has finished this step
        self.slots: tuple[int, ...] | None = None


class HeldRows:
    """A queue of step rows that wait until the device's times of the same step are known."""

    def __init__(self, write: Callable[[Written], None]) -> None:
        self._write = write
        self._rows: deque[_Held] = deque()
        self._first = 0  # number of the oldest row in the queue
        self._matched = 0  # number of rows that the device has finished

    def hold(self, written: Written, now_s: float) -> None:
        """Add a row that the host's state machine has finished."""
        wait_s = max(_LEAST_WAIT_S, _STEPS_TO_WAIT * written.row.wall_ns / 1e9)
        self._rows.append(_Held(written, now_s + wait_s))

    def match(self, slots: tuple[int, ...] | None) -> None:
        """Store the device times of the next step's phases, or None if the device did not time the step."""
        place = self._matched - self._first
        self._matched += 1
        if 0 <= place < len(self._rows):
            self._rows[place].matched = True
            self._rows[place].slots = slots

    def release(self, now_s: float, *, everything: bool = False) -> None:
        """Write the rows that need not wait any longer."""
        while self._rows:
            held = self._rows[0]
            ready = held.matched and not _on_its_way(held.written.row.loss)
            if not (ready or everything or now_s >= held.due_s or len(self._rows) > _MOST_ROWS):
                return
            self._rows.popleft()
            self._first += 1
            self._write(_completed(held))


def _on_its_way(loss: Any) -> bool:
    return hasattr(loss, "arrived") and not loss.arrived()


def _completed(held: _Held) -> Written:
    """Return the row with the device's times if there are any, and with its loss if it has arrived."""
    row, flags, loss = held.written.row, held.written.flags, held.written.row.loss
    if hasattr(loss, "arrived"):
        loss = loss.value() if loss.arrived() else None
    if loss is None:
        flags &= ~FLAG_LOSS
    if held.slots is not None and sum(held.slots) > 0:
        row = row._replace(slots_ns=scaled(held.slots, row.wall_ns))
        flags |= FLAG_DEVICE_TIMED
    return held.written._replace(row=row, flags=flags, loss=float("nan") if loss is None else loss)


def scaled(slots: tuple[int, ...], wall_ns: int) -> tuple[int, ...]:
    """Scale the times of a step's phases to whole ns that add up to the wall time."""
    total = sum(slots)
    found = [slot * wall_ns // total for slot in slots]
    found[slots.index(max(slots))] += wall_ns - sum(found)
    return tuple(found)
