"""How far the host is ahead of the GPU: delays, what waits, launch-bound stretches."""

from __future__ import annotations

import pytest
from tests.traces.making import by_chance, captured, gpu, launch

from paceline.traces.analyze.launch_queue import IN_A_ROW, NOTHING, queue_of


def queue(folder, *events):
    capture = captured(folder, *events)
    return queue_of(capture.events, capture.launches)


def test_work_that_is_launched_ahead(tmp_path):
    events = [e for i in range(10) for e in (launch(i, i, 0.5), gpu(10 + 20 * i, 30 + 20 * i, i))]
    found = queue(tmp_path, *events)
    assert (found.launched, found.late, found.stretches) == (10, 0, 0)
    assert (found.waiting_median, found.waiting_most) == (4, 9)  # nothing begins before the tenth launch
    assert found.delay_median_ns == 86_000  # the fifth of 10, 29, ... 181


def test_work_that_is_launched_one_by_one(tmp_path):
    events = [e for i in range(20) for e in (launch(50 * i, i), gpu(50 * i + 5, 50 * i + 9, i))]
    found = queue(tmp_path, *events)
    assert (found.late, found.waiting_most, found.delay_median_ns) == (19, 0, 5000)  # before the first it was not idle
    assert (found.stretches, found.bound_ns) == (1, 950_000)  # from the end of the first to that of the last


def test_a_few_late_launches_are_no_stretch(tmp_path):
    events = [e for i in range(IN_A_ROW) for e in (launch(50 * i, i), gpu(50 * i + 5, 50 * i + 9, i))]
    assert queue(tmp_path, *events).stretches == 0  # the first is none


def test_long_work_leaves_the_host_time(tmp_path):
    events = [e for i in range(20) for e in (launch(500 * i, i), gpu(500 * i + 5, 500 * i + 205, i))]
    found = queue(tmp_path, *events)
    assert (found.late, found.stretches) == (19, 0)


def test_without_launches_nothing_is_known(tmp_path):
    assert queue(tmp_path, gpu(0, 5, 1)) == NOTHING


@pytest.mark.parametrize("seed", range(10))
def test_what_waits_is_counted(tmp_path, seed):
    capture = captured(tmp_path, *by_chance(seed))
    at = {int(c): int(s) for c, s in zip(capture.launches.correlation, capture.launches.start_ns, strict=True)}
    pairs = [(at[int(c)], int(s)) for c, s in zip(capture.events.correlation, capture.events.start_ns, strict=True)]
    waiting = [sum(one < now < start for one, start in pairs) for now, _ in pairs]
    found = queue_of(capture.events, capture.launches)
    assert found.waiting_most == max(waiting)
    assert found.launched == len(pairs)
