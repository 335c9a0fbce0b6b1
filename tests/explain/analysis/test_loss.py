from __future__ import annotations

import math

import numpy as np
import pytest
from tests.explain.build import RunFolder, steps

from paceline.explain.analysis.loss import loss_curve

NAN, INF = math.nan, math.inf


def curve(tmp_path, values, target=None, **more):
    """The curve of steps of 10 ms on 8 samples each, with these losses; None is a step without one."""
    rows = steps(len(values), lambda n: {"loss": values[n]}, forward=10, **more)
    return loss_curve(RunFolder(tmp_path).rank(rows).launch().read().ranks[0], target)


def test_against_steps_seconds_and_samples(tmp_path):
    found = curve(tmp_path, [4.0, 3.0, 2.0])
    assert list(found.steps) == [0, 1, 2]
    assert list(found.values) == [4.0, 3.0, 2.0]
    assert list(found.seconds) == pytest.approx([0.01, 0.02, 0.03])
    assert list(found.samples) == [8.0, 16.0, 24.0]
    assert (found.finite, found.first_bad_step, found.target, found.target_reached) == (True, None, None, None)


def test_no_loss_was_seen(tmp_path):
    assert curve(tmp_path, [None] * 5) is None


def test_steps_without_a_loss_still_take_time(tmp_path):
    found = curve(tmp_path, [None, 3.0, None, None, 1.0])
    assert list(found.steps) == [1, 4]
    assert list(found.seconds) == pytest.approx([0.02, 0.05])
    assert list(found.samples) == [16.0, 40.0]


def test_samples_that_are_unknown_add_nothing(tmp_path):
    assert list(curve(tmp_path, [1.0, 2.0], samples=NAN).samples) == [0.0, 0.0]


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_the_first_bad_step(tmp_path, bad):
    found = curve(tmp_path, [2.0, 1.5, 1.2, bad, NAN, NAN])
    assert (found.finite, found.first_bad_step) == (False, 3)
    assert (found.first, found.last) == (2.0, None)


def test_bad_from_the_start(tmp_path):
    found = curve(tmp_path, [NAN] * 4)
    assert (found.first_bad_step, found.first, found.last) == (0, None, None)


def test_the_first_bad_step_after_steps_without_a_loss(tmp_path):
    assert curve(tmp_path, [None, 1.0, None, NAN]).first_bad_step == 3


def test_first_and_last_are_medians_of_tenths(tmp_path):
    values = [10.0] * 10 + [5.0] * 80 + [1.0] * 10
    values[3], values[95] = 1000.0, 1000.0
    found = curve(tmp_path, values)
    assert (found.first, found.last) == (10.0, 1.0)


def test_a_recovered_loss_has_a_last_value(tmp_path):
    assert curve(tmp_path, [2.0, INF, 1.0, 0.5]).last == 0.5


def test_a_target_is_reached_by_the_running_median_of_five(tmp_path):
    values = [2.0] * 10 + [0.1] + [2.0] * 9 + [0.9] * 10  # the dip at step 10 is noise
    reached = curve(tmp_path, values, target=1.0).target_reached
    assert reached == {"step": 22.0, "seconds": pytest.approx(0.23), "samples": 23 * 8.0}


def test_a_target_that_is_not_reached(tmp_path):
    found = curve(tmp_path, [2.0] * 20, target=1.0)
    assert (found.target, found.target_reached) == (1.0, None)


def test_a_target_met_exactly(tmp_path):
    assert curve(tmp_path, [1.0] * 5, target=1.0).target_reached["step"] == 4.0


def test_a_target_on_a_run_shorter_than_the_window(tmp_path):
    assert curve(tmp_path, [3.0, 0.5], target=2.0).target_reached == {
        "step": 1.0,
        "seconds": pytest.approx(0.02),
        "samples": 16.0,
    }


def test_a_target_is_not_reached_by_no_number(tmp_path):
    assert curve(tmp_path, [3.0, NAN, NAN, NAN, NAN, NAN], target=2.0).target_reached is None


def test_a_long_curve_is_thinned_and_keeps_its_ends(tmp_path):
    values = np.linspace(5, 1, 4001).tolist()
    found = curve(tmp_path, values, target=3.0)
    assert len(found.steps) == len(found.values) == len(found.seconds) == len(found.samples) <= 1500
    assert (found.steps[0], found.steps[-1]) == (0, 4000)
    assert found.target_reached["step"] == pytest.approx(2002, abs=1)


def test_rows_whose_numbers_jump_do_no_harm(tmp_path):
    """A damaged record: the place of a row counts, not what it calls itself."""
    run = RunFolder(tmp_path).rank(steps(6, lambda n: {"loss": float(n)}, forward=10)).launch()
    path = next((run.folder / "ranks").iterdir()) / "steps.bin"
    data = bytearray(path.read_bytes())
    data[3 * 92 : 3 * 92 + 4] = (900_000).to_bytes(4, "little")
    path.write_bytes(bytes(data))
    found = loss_curve(run.read().ranks[0], None)
    assert list(found.seconds) == pytest.approx([0.01 * n for n in range(1, 7)])
