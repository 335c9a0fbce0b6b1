"""Python 3.12 and later warn if a process with several threads forks: never for the recorder's thread alone."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest

from paceline.inprocess.recorder import fork_warning, start

PYTHON_SAYS = "This process (pid=7) is multi-threaded, use of fork() may lead to deadlocks in the child."
RECORDER = 12


@pytest.fixture
def fork(monkeypatch, tmp_path):
    """Return a function that forks with some threads, as Python 3.13 does; it returns what Python warned of."""
    footprint = SimpleNamespace(delayed_fork=lambda delay_s: None)
    scribe = SimpleNamespace(stop=lambda: None, native_id=RECORDER, footprint=footprint)
    monkeypatch.setitem(start._state, "scribe", scribe)
    monkeypatch.setattr(fork_warning, "sys", SimpleNamespace(version_info=(3, 13)))
    monkeypatch.setattr(fork_warning, "_TASKS", str(tmp_path))

    def forked(*threads: int) -> list[str]:
        for task in tmp_path.iterdir():
            task.rmdir()
        for thread in threads:
            (tmp_path / str(thread)).mkdir()
        start._before_fork()
        with warnings.catch_warnings(record=True) as found:
            if len(threads) > 1:
                warnings.warn(PYTHON_SAYS, DeprecationWarning, stacklevel=2)
            return [str(one.message) for one in found]

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        yield forked


def test_the_recorders_thread_alone_brings_no_warning(fork):
    assert fork(11, RECORDER) == []


def test_a_thread_of_the_program_brings_its_warning(fork):
    assert fork(11, RECORDER) == []
    assert fork(11, RECORDER, 13) == [PYTHON_SAYS]
    assert fork(11, 13) == [PYTHON_SAYS]
    assert fork(11) == []


def test_other_warnings_are_shown_as_before(fork):
    assert fork(11, RECORDER) == []
    with warnings.catch_warnings(record=True) as found:
        warnings.warn("something else", DeprecationWarning, stacklevel=1)
    assert [str(one.message) for one in found] == ["something else"]


def test_without_a_list_of_threads_the_warning_is_shown(fork, monkeypatch):
    monkeypatch.setattr(fork_warning, "_TASKS", "/nowhere")
    fork_warning.before_fork(RECORDER)
    with warnings.catch_warnings(record=True) as found:
        warnings.warn(PYTHON_SAYS, DeprecationWarning, stacklevel=1)
    assert len(found) == 1
