"""Steps that only the host timed, in a run in which the device timed others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.explain.build import RunFolder, step, steps
from tests.explain.gpu_run import META

from paceline.explain.breakdown import phase_columns, steady
from paceline.explain.device_times import at_the_device
from paceline.record.layout import FLAG_DEVICE_TIMED, FLAG_FRESH, SLOTS
from paceline.record.read import STEP_TYPE

TIMED = FLAG_FRESH | FLAG_DEVICE_TIMED


def phases_of(tmp_path, rows):
    run = RunFolder(tmp_path).rank(rows, meta=META).launch().read()
    return phase_columns(run.ranks[0], run.ranks[0].steps), steady(run.ranks[0])


def one_in_four(number):
    """The device spends 3, 6 and 1 ms; the host sees nearly all of it in the transfer, where it waits."""
    if number % 4 == 0:
        return {"forward": 3, "backward": 6, "optimizer": 1, "flags": TIMED}
    return {"transfer": 9, "forward": 0.4, "backward": 0.4, "optimizer": 0.2, "flags": FLAG_FRESH}


def test_the_others_get_the_shares_of_the_timed(tmp_path):
    columns, _ = phases_of(tmp_path, steps(80, one_in_four))
    assert columns["forward"] == pytest.approx(np.full(80, 0.003), rel=1e-4)
    assert columns["transfer"] == pytest.approx(np.zeros(80), abs=1e-9)


def test_a_long_step_is_booked_where_the_host_was_longer_than_usual(tmp_path):
    rows = steps(80, one_in_four)
    rows[41] = step(transfer=9, forward=0.4, backward=0.4, optimizer=0.2, checkpoint=500, flags=FLAG_FRESH)
    columns, _ = phases_of(tmp_path, rows)
    assert columns["checkpoint"][41] == pytest.approx(0.5, rel=1e-4)
    assert columns["backward"][41] == pytest.approx(0.006, rel=1e-4)


def test_a_few_timed_steps_do_not_speak_for_all(tmp_path):
    rows = steps(40, lambda n: one_in_four(0 if n < 7 else 1))
    columns, _ = phases_of(tmp_path, rows)
    assert columns["transfer"][-1] == pytest.approx(0.009, rel=1e-4)


@given(
    arrays(float, (11, 40), elements=st.floats(0, 10)),
    arrays(bool, 40),
)
def test_sums_stay_and_nothing_gets_negative(table, timed):
    rows = np.zeros(40, dtype=STEP_TYPE)
    rows["flags"] = np.where(timed, FLAG_DEVICE_TIMED, 0)
    found = np.stack(list(at_the_device(rows, dict(zip(SLOTS, table.copy()))).values()))
    assert found.min() >= -1e-9
    assert found.sum(axis=0) == pytest.approx(table.sum(axis=0), abs=1e-6) or table[:, timed].sum() == 0
