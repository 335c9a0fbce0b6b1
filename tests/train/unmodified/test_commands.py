"""Commands that a program starts run once, as in one process, and every rank goes on with what they gave."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.train.unmodified import commands
from tests.train.unmodified.test_unmodified import HERE, environment, paceline


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    one, several = (tmp_path_factory.mktemp(name) for name in ("one", "several"))
    line = [sys.executable, HERE / "commands.py"]
    alone = subprocess.run(line, capture_output=True, text=True, timeout=120, env=environment(), cwd=one)
    ranks = paceline(several, "-q", "--no-profile", "--layout", "dp=2", HERE / "commands.py", timeout_s=120)
    assert (alone.returncode, ranks.returncode) == (0, 0), (alone.stderr, ranks.stderr)
    return [dict(each.split(" ", 1) for each in done.stdout.splitlines()) for done in (alone, ranks)]


@pytest.mark.parametrize("name", commands.CASES)
def test_commands_run_once_and_all_ranks_have_what_they_gave(both, name):
    one, several = both
    assert several[name] == one[name]
