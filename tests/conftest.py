"""What every test may rely on, wherever the suite is started.

Tuning remembers trials in the home of its user; what tests do is not to be remembered, nor to be changed by it. A suite
that a shell started in the background ignores Ctrl-C, and so would every program that it starts.
"""

from __future__ import annotations

import os
import signal
import tempfile

import pytest

_state = pytest.StashKey[tempfile.TemporaryDirectory]()


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[_state] = tempfile.TemporaryDirectory(prefix="paceline-state-")
    os.environ["XDG_STATE_HOME"] = config.stash[_state].name  # for commands that get none of our own variables
    os.environ["PACELINE_HISTORY"] = "off"


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_state].cleanup()
