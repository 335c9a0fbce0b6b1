"""Whether a thread computes without the interpreter's lock is seen from a thread that holds it."""

from __future__ import annotations

import hashlib
import os
import threading
import time

from paceline.inprocess.recorder.process import ThreadState


def looks(thread_id: int, count: int = 20) -> list[bool | None]:
    state, found = ThreadState(), []
    for _ in range(count):
        time.sleep(0.005)
        state.open(thread_id)
        found.append(state.runs())
    return found


def while_in(work, stop):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        time.sleep(0.05)
        return looks(thread.native_id)
    finally:
        stop.set()
        thread.join()


def test_a_thread_that_computes_without_the_lock_runs():
    stop, data = threading.Event(), bytes(50_000_000)

    def work():
        while not stop.is_set():
            hashlib.sha256(data)

    found = while_in(work, stop)
    assert found.count(True) >= 15


def test_a_thread_that_waits_does_not_run():
    stop = threading.Event()
    assert while_in(stop.wait, stop).count(False) >= 18


def test_of_a_thread_that_is_gone_nothing_is_known():
    assert looks(2**22 - 1, 1) == [None]


def test_the_file_of_a_thread_is_opened_once(monkeypatch):
    """Opening a file gives the interpreter's lock away, so that the sampler sees the thread where it got it back."""
    opened, opener = [], os.open
    monkeypatch.setattr(os, "open", lambda *args: opened.append(args) or opener(*args))
    looks(threading.get_native_id(), count=5)
    assert len(opened) == 1


def test_a_file_that_the_program_closed_is_opened_again_a_few_times():
    state = ThreadState()
    thread = threading.get_native_id()
    state.open(thread)
    for _ in range(20):
        if state._file is not None:
            os.close(state._file)
        state.runs()
        state.open(thread)
    assert state._file is None
    assert state.runs() is None
