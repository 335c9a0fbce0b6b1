"""The file of earlier trials: where it is, and what torn lines, many writers and a full or closed place do to it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from tests.report.tune import tune_sample

from paceline.core.statistics import Interval
from paceline.tune.search.history import TrialHistory, history_file, read_history
from paceline.tune.search.predictions import Machine

HERE = Machine(host="here", device="cpu", torch="2.13.0")
MEASURED, *_ = tune_sample.TRIALS
MANY = """
import sys
from pathlib import Path
from tests.tune.search.test_history import HERE, MEASURED
from paceline.tune.search.history import TrialHistory
ledger = TrialHistory(Path(sys.argv[1]), print)
for _ in range(200):
    ledger.add(MEASURED, HERE)
"""


def silent(text: str) -> None:
    raise AssertionError(text)


@pytest.mark.parametrize(
    ("environment", "file"),
    [
        ({"HOME": "/home/a"}, "/home/a/.local/state/paceline"),
        ({"HOME": "/home/a", "XDG_STATE_HOME": "/state"}, "/state/paceline"),
        ({"HOME": "/home/a", "XDG_STATE_HOME": "state"}, "/home/a/.local/state/paceline"),
        ({"HOME": "/home/a", "PACELINE_HISTORY": ""}, "/home/a/.local/state/paceline"),
    ],
)
def test_the_file_is_where_the_state_of_programs_is(environment, file):
    found = history_file(environment)
    assert str(found.parent) == file
    assert found.match("trials-*.jsonl")


def test_the_file_can_be_named_or_switched_off():
    assert history_file({"HOME": "/home/a", "PACELINE_HISTORY": "kept.jsonl"}) == Path("kept.jsonl")
    assert history_file({"HOME": "/home/a", "PACELINE_HISTORY": "off"}) is None
    assert history_file({"HOME": "/home/a", "PACELINE_HISTORY": "OFF"}) is None
    assert history_file({}) is None


def test_what_is_written_is_read_again(tmp_path):
    file = tmp_path / "state" / "paceline" / "trials.jsonl"
    TrialHistory(file, silent).add(MEASURED, HERE)
    (found,) = TrialHistory(file, silent).seen
    assert found.remedy == "loader.workers"
    assert found.predicted_by_findings == MEASURED.predicted_by_findings
    assert found.predicted == MEASURED.predicted
    assert found.achieved == MEASURED.speedup
    assert found.machine == HERE
    assert found.date.endswith("+00:00")


def test_a_line_says_no_more_than_it_needs(tmp_path):
    """No command, no path and nothing of the recipe, which may hold both."""
    file = tmp_path / "trials.jsonl"
    TrialHistory(file, silent).add(MEASURED, HERE)
    keys = {"remedy", "safety", "status", "predicted_by_findings", "predicted", "achieved", "machine", "date"}
    assert json.loads(file.read_text()).keys() == keys


def test_what_was_not_measured_is_not_kept(tmp_path):
    file = tmp_path / "trials.jsonl"
    ledger = TrialHistory(file, silent)
    for trial in tune_sample.TRIALS:
        ledger.add(trial, HERE)
    endless = tune_sample.trial(9, "a", {}, speedup=Interval(value=2.0, low=0.0, high=math.inf, count=1))
    ledger.add(endless, HERE)
    measured = [trial for trial in tune_sample.TRIALS if trial.speedup is not None]
    assert [one.status for one in read_history(file)] == [trial.status for trial in measured]
    assert len(ledger.seen) == len(measured)


def test_torn_and_unknown_lines_are_passed_over_and_harm_no_later_one(tmp_path):
    file = tmp_path / "trials.jsonl"
    TrialHistory(file, silent).add(MEASURED, HERE)
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"remedy": "from tomorrow"}\n\n\xff\xfe\n[1]\n' + whole[: len(whole) // 2])
    ledger = TrialHistory(file, silent)
    assert len(ledger.seen) == 1
    ledger.add(MEASURED, HERE)
    assert len(read_history(file)) == 2


def test_many_commands_write_whole_lines_at_once(tmp_path):
    file = tmp_path / "trials.jsonl"
    command = [sys.executable, "-c", MANY, str(file)]
    writers = [subprocess.Popen(command, cwd=Path(__file__).parents[3]) for _ in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert len(file.read_bytes().splitlines()) == len(read_history(file)) == 600


def test_a_place_that_cannot_be_written_is_told_once(tmp_path):
    (tmp_path / "paceline").write_text("a file where the folder should be")
    told: list[str] = []
    ledger = TrialHistory(tmp_path / "paceline" / "trials.jsonl", told.append)
    ledger.add(MEASURED, HERE)
    ledger.add(MEASURED, HERE)
    assert len(told) == 1
    assert "set the environment variable PACELINE_HISTORY to another file, or to off" in told[0]


def test_switched_off_nothing_is_known_and_nothing_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ledger = TrialHistory(None, silent)
    ledger.add(MEASURED, HERE)
    assert ledger.seen == []
    assert list(tmp_path.iterdir()) == []


def test_a_gain_that_nobody_predicted_is_kept_too(tmp_path):
    file = tmp_path / "trials.jsonl"
    trial = tune_sample.trial(1, "loader.cache", {}, speedup=tune_sample.factor(1.2, 1.1, 1.3))
    TrialHistory(file, silent).add(trial, HERE)
    (found,) = read_history(file)
    assert (found.predicted, found.predicted_by_findings) == (None, None)
    assert found.achieved.value == 1.2
