"""When do ranks wait for each other without end, and when can a rank end? No process is started."""

from __future__ import annotations

import ctypes
import hashlib
import sys
import threading

import pytest

from paceline.train.unmodified.exchange import Wait, verdict, wait_for_threads

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


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no states in /proc")
def test_a_rank_ends_when_threads_of_exchanges_sleep():
    """One that is still at work would ask for Python after its end."""
    begun, done = threading.Event(), threading.Event()

    def work():
        ctypes.CDLL(None).prctl(15, b"pt_gloo_runloop")  # PR_SET_NAME
        begun.set()
        for _ in range(4):
            hashlib.pbkdf2_hmac("sha256", b"a", b"b", 200_000)  # without Python's lock
        done.set()

    threading.Thread(target=work).start()
    begun.wait()
    wait_for_threads()
    assert done.is_set()
