"""Tuning remembers trials in the home of its user; what tests do is not to be remembered, nor to be changed by it."""

from __future__ import annotations

import os
import tempfile

import pytest

_state = pytest.StashKey[tempfile.TemporaryDirectory]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_state] = tempfile.TemporaryDirectory(prefix="paceline-state-")
    os.environ["XDG_STATE_HOME"] = config.stash[_state].name  # for commands that get none of our own variables
    os.environ["PACELINE_HISTORY"] = "off"


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_state].cleanup()
