"""Is the switch interval short while a sampler waits, and the program's own at any other time?"""

from __future__ import annotations

import sys
import threading

import pytest

from paceline.inprocess.recorder.stacks.switch_interval import Prompt


@pytest.fixture(autouse=True)
def usual():
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    yield
    done.set()
    thread.join()
    sys.setswitchinterval(before)


def during(prompt: Prompt) -> float:
    seen = []
    prompt.wait(lambda: seen.append(sys.getswitchinterval()))
    return round(seen[0], 6)


def test_it_is_short_while_waiting_only():
    assert during(Prompt()) == 0.001
    assert round(sys.getswitchinterval(), 6) == 0.005


def test_it_is_shorter_in_a_program_with_one_thread(monkeypatch):
    monkeypatch.setattr(threading, "_active", {1: threading.main_thread()})
    assert during(Prompt()) == 0.00001


def test_it_is_put_back_when_waiting_fails():
    def fail():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Prompt().wait(fail)
    assert round(sys.getswitchinterval(), 6) == 0.005


def test_what_the_program_sets_meanwhile_stays():
    Prompt().wait(lambda: sys.setswitchinterval(0.02))
    assert round(sys.getswitchinterval(), 6) == 0.02


def test_a_shorter_one_is_left_alone():
    sys.setswitchinterval(0.0005)
    assert during(Prompt()) == 0.0005


def test_in_the_long_run_it_is_left_alone_nine_times_in_ten():
    prompt = Prompt()
    for _ in range(1500):
        assert during(prompt) == 0.001
    assert sorted(during(prompt) for _ in range(100)) == [0.001] * 10 + [0.005] * 90


def test_what_was_waited_for_is_returned():
    assert Prompt().wait(lambda: True) is True
    assert Prompt().wait(lambda: None) is False
