"""Numbers carry their units, and the phrases that all reports share are right."""

from __future__ import annotations

import math

import pytest
from tests.report import sample

from paceline.core.statistics import Interval
from paceline.explain.model import Gain
from paceline.report import words
from paceline.report.page.axis import axis


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.412, "s", "412 ms"),
        (1.5 * 2**30, "bytes", "1.50 GiB"),
        (41 * 2**20, "bytes/s", "41.0 MiB/s"),
        (0.61, "share", "61%"),
        (61.0, "%", "61%"),
        (1.5, "x", "1.50x"),
        (12.0, "USD", "12.00 USD"),
        (480.0, "W", "480 W"),
        (1240.0, "steps", "1,240 steps"),
        (1.84, "", "1.84"),
        (None, "s", "n/a"),
        (math.nan, "W", "n/a"),
        (math.inf, "s", "n/a"),
    ],
)
def test_quantity(value: float | None, unit: str, text: str) -> None:
    assert words.quantity(value, unit) == text


def test_one_thing_is_written_in_the_singular() -> None:
    assert [words.quantity(number, "cores") for number in (1.0, 2.0)] == ["1 core", "2 cores"]
    assert words.quantity(1.0, "samples/s") == "1 samples/s"
    assert [label for _, label in axis([2.0], "cores").ticks()][-3:] == ["1 core", "1.5 cores", "2 cores"]


def test_interval_names_its_bounds_once() -> None:
    assert words.interval(Interval(value=0.412, low=0.404, high=0.421, count=9)) == "412 ms (95% CI 404–421)"
    minutes = Interval(value=125, low=120, high=130, count=9)
    assert words.interval(minutes) == "2 min 05 s (95% CI 2 min 00 s–2 min 10 s)"
    assert words.interval(Interval(value=2.93, low=2.41, high=13.6, count=9), "x") == "2.93x (95% CI 2.41–14)"
    assert words.interval(Interval(value=0.99, low=0.9, high=1.1, count=9)) == "990 ms (95% CI 900 ms–1.10 s)"


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(1.55, 2.1, "1.55x to 2.10x"), (1.0, 1.2, "up to 1.20x"), (1.5, 1.5, "1.50x"), (0.9, 1.0, "none")],
)
def test_gain(low: float, high: float, text: str) -> None:
    assert words.gain(Gain(low=low, high=high)) == text


@pytest.mark.parametrize(("numbers", "text"), [([5], "5"), ([0, 1, 2, 3, 7], "0–3, 7"), ([], ""), ([2, 1, 1], "1–2")])
def test_number_list(numbers: list[int], text: str) -> None:
    assert words.number_list(numbers) == text


def test_number_list_ends() -> None:
    assert words.number_list(list(range(0, 100, 2)), 3) == "0, 2, 4 and more"


@pytest.mark.parametrize(
    ("scene", "mood", "mark"),
    [
        ("data_bound", "warning", "▲"),
        ("healthy", "good", "✓"),
        ("killed", "critical", "✗"),
        ("no_steps", "critical", "✗"),
        ("too_short", "info", "●"),
        ("nan_loss", "critical", "✗"),
    ],
)
def test_mood(scene: str, mood: str, mark: str) -> None:
    diagnosis = sample.SCENES[scene]()
    assert (words.mood(diagnosis), words.mark(diagnosis)) == (mood, mark)


def test_time_lost_is_no_failure() -> None:
    lost = sample.finding("DATA001", "loader-serial", "", severity="critical", gain=Gain(low=2, high=3))
    diagnosis = sample.diagnosis(findings=(lost,), verdict="loader-serial")
    assert (words.mood(diagnosis), words.mark(diagnosis)) == ("critical", "▲")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rank 5 waits", "Rank 5 waits"),
        ("torch.save blocks", "torch.save blocks"),
        ("2 workers", "2 workers"),
        ("", ""),
        ("a\x1bb\nc\u202ed", "a\ufffdb c\ufffdd"),
    ],
)
def test_headline(text: str, shown: str) -> None:
    assert words.headline(text) == shown


def test_ranks_that_do_not_differ_are_not_mentioned() -> None:
    assert words.rank_spread([sample.rank(0), sample.rank(1)]) == ""
    assert words.rank_spread([sample.rank(0)]) == ""


def test_ending_says_the_exit_code_once() -> None:
    assert words.ending(sample.crashed()) == "failed with exit code 1"
    assert words.ending(sample.killed()) == "killed by SIGKILL (out of memory), exit code 137"
    assert words.ending(sample.running()) == "still running"
