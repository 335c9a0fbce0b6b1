"""Is progress shown live on a terminal, sparsely elsewhere, and with the time left?"""

from __future__ import annotations

import re
import time

import pytest

from paceline.cli.base import progress
from paceline.cli.base.progress import Progress


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def show(clock: Clock, shown: Progress, total: int, seconds: float) -> None:
    """Do one of `total` things every so many seconds."""
    with shown:
        for done in range(total + 1):
            shown(done, total)
            clock.now += seconds


def test_lines_are_sparse_without_a_terminal(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    show(clock, Progress("samples"), 60, 1.0)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "paceline: 10 of 60 samples, 17%, 50 s left"
    assert len(lines) == 6


def test_a_short_task_says_nothing(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    show(clock, Progress("samples"), 5, 1.0)
    assert capsys.readouterr().err == ""


def test_a_line_is_live_on_a_terminal(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Progress("files") as shown:
        shown(0, 4)
        clock.now += 60
        shown(1, 4)
        shown.note("trial 1 failed")
    text = capsys.readouterr().err
    assert "1 of 4 files, 25%, 3 min left" in text
    assert "\r\033[Kpaceline: trial 1 failed\n" in text
    assert text.endswith("\r\033[K")
    assert "\n" not in text.replace("trial 1 failed\n", "")


def test_work_that_goes_on_is_timed_from_where_it_was(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("samples") as shown:
        shown(500, 1000)
        clock.now += 10
        shown(600, 1000)
    assert capsys.readouterr().err == "paceline: 600 of 1,000 samples, 60%, 40 s left\n"


def test_the_caller_may_know_the_time_left(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as shown:
        clock.now += 11
        shown.update(0.5, "trial 3 of 40", left_s=300)
    assert capsys.readouterr().err == "paceline: trial 3 of 40, 50%, 5 min left\n"


def test_the_time_left_of_a_budget_counts_down_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Progress() as shown, shown.counting_down(10.0) as tell:
        tell("trying more workers")
        time.sleep(2.5)
    text = capsys.readouterr().err
    assert text.startswith("paceline: trying more workers\n")
    assert re.search(r"trying more workers, 1\d%, [89] s left", text)
    assert text.endswith("\r\033[K")


def test_without_a_terminal_a_budget_shows_lines_only(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as shown, shown.counting_down(10.0) as tell:
        tell("trying more workers")
    assert capsys.readouterr().err == "paceline: trying more workers\n"
