"""Device times from events, on a simulated device."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.inprocess.recorder.moments import check_tiling
from tests.inprocess.recorder.played_device import MS, Training, ms

from paceline.inprocess.recorder import probe_state as g
from paceline.inprocess.recorder.device.clock import Timed


def train(program: Training, steps: int, fetch=1.0, device=(10, 20, 3), wait=False) -> None:
    forward, backward, optimizer = device
    for _ in range(steps):
        program.fetch(fetch)
        program.forward(1, forward)
        program.backward(1, backward)
        program.optimize(0.5, optimizer)
        if wait:
            program.device.wait()
        program.drain()


def test_a_device_that_is_busy_all_the_time():
    """The host says little of it: it runs ahead and waits wherever it must."""
    program = Training()
    train(program, 6)
    program.finish()
    assert [ms(row.slots_ns)["forward"] for row in program.rows] == [1.0] * 6
    whole = list(program.clock.rows)[2:]
    assert [ms(slots) for slots in whole] == [{"forward": 10.0, "backward": 20.0, "optimizer": 3.0}] * 4


def test_a_device_that_waits_for_data():
    program = Training()
    train(program, 5, fetch=50.0)
    program.finish()
    # The device is done 33 ms after the forward began; the host has gone on 2.5 ms by then, then fetches for 50.
    assert ms(program.clock.rows[-1]) == {"data_wait": 19.5, "forward": 10.0, "backward": 20.0, "optimizer": 3.0}


def test_a_device_that_waits_for_the_host_to_issue_work():
    program = Training()
    train(program, 8, device=(0.25, 0.25, 0.125))
    program.finish()
    assert ms(program.clock.rows[-1]) == {"data_wait": 1.0, "forward": 1.0, "backward": 1.0, "optimizer": 0.5}
    assert all(lag == 0 for lag in program.clock.lags_s().values())


def test_how_far_a_busy_device_is_behind():
    program = Training()
    train(program, 8, wait=True)
    program.finish()
    assert program.clock.lags_s() == pytest.approx({"forward": 0.009, "backward": 0.028, "optimizer": 0.0305})
    assert program.clock.lag_count == 6


def test_rows_come_when_the_device_has_come_to_them():
    program = Training()
    train(program, 3)
    assert (len(program.rows), len(program.clock.rows)) == (3, 0)
    program.device.idle(70)
    program.drain()
    assert (len(program.rows), len(program.clock.rows)) == (3, 2)
    program.device.wait()
    program.drain()
    assert len(program.clock.rows) == 3


def test_only_whole_steps_in_windows_are_timed():
    program = Training(period=16)
    train(program, 40)
    program.finish()
    timed = [slots is not None for slots in program.clock.rows]
    runs = [(value, len(list(group))) for value, group in groupby(timed)]
    assert runs[2:-1] == [(False, 8), (True, 8), (False, 8)]
    assert runs[1] == (True, 6)  # the first two rows come together, once it is known which optimizer ends a step
    assert program.clock.timed_steps == sum(timed)
    assert all(ms(slots)["backward"] == 20 for slots in program.clock.rows if slots)


def test_an_optimizer_that_is_made_later_carries_no_event_and_spoils_nothing():
    program = Training()
    train(program, 4)
    program.note(g.MADE_OPTIMIZER)
    train(program, 4)
    program.finish()
    assert None not in list(program.clock.rows)[2:]


def test_two_optimizers_in_a_step():
    program = Training()
    for _ in range(6):
        for optimizer in (11, 12):
            program.forward(1, 10)
            program.backward(1, 20)
            program.optimize(0.5, 2, optimizer)
        program.drain()
    program.finish()
    assert len(program.clock.rows) == len(program.rows)
    assert ms(program.clock.rows[-1]) == {"forward": 20.0, "backward": 40.0, "optimizer": 4.0}


def test_no_optimizer_at_all():
    program = Training()
    for _ in range(5):
        program.forward(1, 10)
        program.backward(1, 20)
        program.drain()
    program.finish()
    assert program.stamper.ends == 5


def test_an_event_that_cannot_be_recorded_ends_timing_and_nothing_else():
    program = Training()
    train(program, 4)
    program.device.refuses = RuntimeError("CUDA error: out of events")
    train(program, 4)
    program.finish()
    assert program.stamper.off == "RuntimeError: CUDA error: out of events"
    assert len(program.clock.rows) == len(program.rows)
    assert program.clock.rows[-1] is None
    recorded = program.device.recorded
    program.device.refuses = None
    train(program, 20)
    assert program.device.recorded == recorded


@pytest.mark.parametrize("question", ["query", "elapsed_ns"])
def test_an_event_that_cannot_be_read_ends_timing_and_nothing_else(question):
    program = Training()

    def refuse(*events):
        raise RuntimeError("CUDA error: device-side assert triggered")

    setattr(program.device, question, refuse)
    train(program, 6)
    program.finish()
    assert "device-side assert" in program.stamper.off
    assert list(program.clock.rows) == [None] * len(program.rows)


def test_nothing_is_recorded_while_a_graph_is_captured():
    program = Training()
    train(program, 3)
    program.device.capturing = True
    train(program, 3)
    program.device.capturing = False
    train(program, 3)
    program.finish()
    assert [slots is not None for slots in program.clock.rows] == [False, False, True] + [False] * 4 + [True] * 2
    assert program.stamper.off is None


def test_a_device_that_hangs_is_not_fed_events_without_end():
    program = Training()
    program.stamper.resolved = -(1 << 20)
    train(program, 3)
    assert program.device.recorded == 0


def test_windows_are_set_apart_by_what_they_cost():
    program = Training()
    train(program, 10)
    stamper = program.stamper
    stamper.spent_ns = 60_000 * stamper.timed_ends  # 60 µs a step
    stamper.tune(100 * MS)
    assert stamper.period <= 8  # 0.06%: every step
    stamper.tune(5 * MS)
    assert stamper.period == 48  # 1.2% of a step, at 8 steps of 48: 0.2%
    stamper.tune(1)
    assert stamper.period == 4096


def test_too_few_events_say_nothing_of_their_cost():
    program = Training(period=64)
    program.stamper.tune(1.0)
    assert program.stamper.period == 64


def test_events_are_used_again():
    program = Training()
    train(program, 20)
    program.finish()
    assert program.device.recycled == program.device.recorded - 1


def test_a_timed_moment_is_a_moment():
    assert Timed((1, g.FETCH)) == (1, g.FETCH)


@given(
    st.lists(
        st.tuples(st.sampled_from("fwbos"), st.floats(0, 9), st.floats(0, 9), st.booleans()), min_size=1, max_size=60
    ),
    st.sampled_from([1, 8, 11]),
)
def test_any_program_gets_one_row_of_the_device_for_each_of_the_host(acts, period):
    program = Training(period=period)
    for act, host, device, drains in acts:
        if act == "f":
            program.fetch(host)
        elif act == "w":
            program.forward(host, device)
        elif act == "b":
            program.backward(host, device)
        elif act == "o":
            program.optimize(host, device)
        else:
            program.device.wait()
        if drains:
            program.drain()
    program.finish()
    check_tiling(program.host_rows, program.automaton.first_ns, program.device.host_ns)
    assert len(program.rows) - len(program.clock.rows) in (0, 1)  # the end of the program may close a step
    assert all(min(slots) >= 0 for slots in program.clock.rows if slots)
