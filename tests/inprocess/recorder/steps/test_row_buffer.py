"""Rows that wait for the device, and what they look like when it comes too late."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paceline.inprocess.recorder.steps.parts import Part
from paceline.inprocess.recorder.steps.row_buffer import HeldRows, Written, scaled
from paceline.record.layout import FLAG_DEVICE_TIMED, FLAG_LOSS

MS = 1_000_000


class Loss:
    """On its way until it is told to arrive."""

    def __init__(self) -> None:
        self.here = False
        self.number: float | None = 2.5

    def arrived(self) -> bool:
        return self.here

    def value(self) -> float | None:
        return self.number


def written(step: int, wall_ms: float = 10, loss: object = None) -> Written:
    part = Part()
    part.slots[2] = round(wall_ms * MS)
    part.loss = loss
    row = part.row(0, round(wall_ms * MS))
    return Written(step, row, row.flags, float("nan") if loss is None else -1.0, 0.0)


def device_slots(forward: int, backward: int) -> tuple[int, ...]:
    return (0, 0, forward, backward, *[0] * 7)


@pytest.fixture
def out():
    return []


@pytest.fixture
def held(out):
    return HeldRows(out.append)


def test_a_row_gets_the_devices_slots_at_the_hosts_length(held, out):
    held.hold(written(0, 10), 0.0)
    held.release(0.1)
    assert out == []
    held.match(device_slots(3 * MS, 9 * MS))
    held.release(0.1)
    (row,) = out
    assert row.row.slots_ns == device_slots(2_500_000, 7_500_000)
    assert row.row.wall_ns == 10 * MS
    assert row.flags & FLAG_DEVICE_TIMED


def test_a_step_that_was_not_timed_is_written_with_the_hosts_times(held, out):
    held.hold(written(0), 0.0)
    held.match(None)
    held.release(0.1)
    assert not out[0].flags & FLAG_DEVICE_TIMED
    assert out[0].row.slots_ns[2] == 10 * MS


def test_rows_keep_their_order(held, out):
    for step in range(3):
        held.hold(written(step), 0.0)
    held.match(None)
    held.match(device_slots(1, 1))
    held.release(0.1)
    assert [w.step for w in out] == [0, 1]
    held.match(None)
    held.release(0.1)
    assert [w.step for w in out] == [0, 1, 2]


def test_a_device_that_is_late_is_not_waited_for(held, out):
    held.hold(written(0), 0.0)
    held.hold(written(1), 0.4)
    held.release(0.6)
    assert [w.step for w in out] == [0]
    held.match(device_slots(5, 5))  # of row 0, too late
    held.match(device_slots(5, 5))
    held.release(0.6)
    assert [bool(w.flags & FLAG_DEVICE_TIMED) for w in out] == [False, True]


def test_long_steps_are_waited_for_longer(held, out):
    held.hold(written(0, 1000), 0.0)
    held.release(3.9)
    assert out == []
    held.release(4.0)
    assert len(out) == 1


def test_at_most_64_rows_are_held(held, out):
    for step in range(100):
        held.hold(written(step), 0.0)
        held.release(0.0)
    assert [w.step for w in out] == list(range(36))


def test_everything_goes_at_the_end(held, out):
    held.hold(written(0), 0.0)
    held.release(0.0, everything=True)
    assert len(out) == 1


def test_a_row_waits_for_its_loss(held, out):
    loss = Loss()
    held.hold(written(0, loss=loss), 0.0)
    held.match(None)
    held.release(0.1)
    assert out == []
    loss.here = True
    held.release(0.1)
    assert (out[0].loss, out[0].flags & FLAG_LOSS) == (2.5, FLAG_LOSS)


@pytest.mark.parametrize("arrives", [True, False])
def test_a_loss_that_never_comes_is_no_loss(held, out, arrives):
    loss = Loss()
    loss.here, loss.number = arrives, None
    held.hold(written(0, loss=loss), 0.0)
    held.match(None)
    held.release(9.0)
    assert out[0].loss != out[0].loss
    assert not out[0].flags & FLAG_LOSS


def test_a_loss_that_was_on_the_host_passes_through(held, out):
    held.hold(written(0, loss=0.75), 0.0)
    held.match(device_slots(1, 1))
    held.release(0.0)
    assert (out[0].loss, out[0].flags & FLAG_LOSS) == (0.75, FLAG_LOSS)


@given(st.lists(st.integers(0, 10**12), min_size=11, max_size=11).filter(any), st.integers(0, 10**13))
@example([0] * 9 + [1, 1], 1)
def test_scaled_slots_fill_the_step(slots, wall):
    found = scaled(tuple(slots), wall)
    assert sum(found) == wall
    assert min(found) >= 0
    assert [f == 0 for f, s in zip(found, slots) if not s] == [True] * slots.count(0)
