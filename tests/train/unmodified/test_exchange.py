"""When do ranks wait for each other without end? Decided from what each has written; no process is started."""

from __future__ import annotations

import pytest

from paceline.train.unmodified.exchange import Wait, verdict

NOW_S = 1000.0
HERE, THERE = ("train.py:8", "train.py:30"), ("train.py:12", "train.py:30")


def waits(lines, samples, *, exchange="7 wait", at=NOW_S):
    return Wait(lines, exchange, samples, at)


@pytest.mark.parametrize(
    ("of_each", "without_end"),
    [
        ([waits(HERE, 20), waits(THERE, 20)], True),
        ([waits(HERE, 20), waits(HERE, 20, exchange="8 wait")], True),  # a loop came to it once more on one rank
        ([waits(HERE, 20), waits(HERE, 20)], False),  # a large exchange
        ([waits(HERE, 400), waits(HERE, 400)], True),
        ([waits(HERE, 20), None], False),  # the other one computes
        ([waits(HERE, 20), waits(THERE, 20, at=NOW_S - 60)], False),  # and has waited only earlier
        ([waits(HERE, 20), waits(THERE, 5)], False),
    ],
)
def test_ranks_that_all_wait_at_other_lines_can_never_meet(of_each, without_end):
    assert bool(verdict(of_each, NOW_S)) == without_end


def test_the_lines_of_all_ranks_are_named():
    assert "(rank 0 at train.py:8, rank 1 at train.py:12)" in verdict([waits(HERE, 20), waits(THERE, 20)], NOW_S)
