"""What may each part of a search take?"""

from __future__ import annotations

import time

import pytest

from paceline.tune.comparison.model import Deadline
from paceline.tune.search.budget import Budget


@pytest.mark.parametrize("total_s", [20.0, 60.0, 120.0, 600.0])
def test_the_parts_leave_time_for_trials(total_s):
    budget = Budget(total_s=total_s)
    assert budget.diagnosis_s + budget.confirmation_s <= 0.6 * total_s
    assert budget.comparison_s(total_s) <= max(10.0, total_s / 2)


def test_a_long_search_does_not_take_longer_for_a_trial_than_it_needs():
    assert (Budget(total_s=3600.0).comparison_s(3000.0), Budget(total_s=3600.0).confirmation_s) == (90.0, 60.0)


def test_processes_are_compared_where_there_is_time():
    assert Budget(total_s=600.0).allows_variation(5.0, 0.1)
    assert not Budget(total_s=60.0).allows_variation(5.0, 0.1)
    assert not Budget(total_s=600.0).allows_variation(100.0, 0.1)
    assert not Budget(total_s=600.0).allows_variation(5.0, 10.0)  # blocks of one slow step each


def test_no_trial_is_begun_that_could_not_end():
    budget = Budget(total_s=60.0)
    assert budget.allows_trial(20.0, start_s=5.0)
    assert not budget.allows_trial(20.0, start_s=18.0)
    assert not budget.allows_trial(-1.0, start_s=0.1)


def test_what_takes_long_to_begin_is_left_where_nothing_would_come_of_it():
    budget = Budget(total_s=60.0)
    assert budget.allows_trial(40.0, start_s=5.0, startup_s=20.0)
    assert not budget.allows_trial(35.0, start_s=5.0, startup_s=20.0)


def test_one_trial_leaves_time_to_those_that_wait():
    budget = Budget(total_s=120.0)
    assert budget.promising_s(100.0) == 80.0
    assert budget.promising_s(100.0, waiting=2) < 30.0
    assert budget.large_s(100.0) == 80.0  # whatever waits
    assert budget.comparison_s(100.0) == 50.0
    assert budget.comparison_s(100.0, waiting=2) < 35.0


def test_what_took_long_to_begin_is_measured_for_as_long_though_others_wait():
    budget = Budget(total_s=120.0)
    assert budget.promising_s(60.0, waiting=2, startup_s=25.0) == 25.0
    assert budget.promising_s(25.0, waiting=2, startup_s=25.0) == 20.0  # the rest is for its proof
    assert budget.promising_s(60.0, waiting=2, startup_s=1.0) == budget.promising_s(60.0, waiting=2)


def test_the_last_trial_takes_no_more_than_is_left():
    budget = Budget(total_s=60.0)
    assert (budget.comparison_s(7.0), budget.promising_s(7.0)) == (7.0, 7.0)
    assert budget.comparison_s(1.0) == 5.0


def test_what_begins_late_is_not_ended_for_it():
    now = time.monotonic()
    until = Deadline(usual=now + 10.0, promising=now + 20.0, large=now + 30.0, startup_s=15.0)
    assert until.later(now, start_s=2.0) == until  # it began as soon as the program does without it
    late = until.later(now - 12.0, start_s=2.0)
    assert late.usual == pytest.approx(now + 20.0, abs=1.0)
    assert until.later(now - 60.0, start_s=2.0).promising == pytest.approx(now + 35.0, abs=1.0)  # and no more than that
