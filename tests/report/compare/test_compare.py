"""Do the three forms of a comparison say the same, whatever it holds?"""

from __future__ import annotations

import dataclasses
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from tests.explain.written_run import steady_rows, write_run

from paceline.core.statistics import Interval
from paceline.explain.compare import compare
from paceline.explain.comparison import Comparison, SettingDifference
from paceline.record.read import read_run
from paceline.report.compare.json import comparison_to_json
from paceline.report.compare.markdown import comparison_to_markdown
from paceline.report.compare.rows import relative, rows, signed_interval
from paceline.report.compare.terminal import render_comparison

COUNT = 120
ESCAPE = re.compile("\x1b\\[[0-9;]*m")


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    place = tmp_path_factory.mktemp("runs")
    noise = [np.exp(0.01 * np.random.default_rng(seed).standard_normal(COUNT)) for seed in (1, 2)]
    before = write_run(place / "20261121-031500-train-3fa2", steady_rows(0.0412 * noise[0]))
    waits = {"data_wait": [0.0101] * COUNT}
    after = write_run(place / "20261121-031600-train-93cc", steady_rows(0.0513 * noise[1], waits), torch="2.14.0")
    return compare(read_run(before), read_run(after), 0.05)


def printed(comparison: Comparison, width: int = 80, encoding: str = "utf-8", **console: object) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    render_comparison(comparison, Console(file=file, width=width, legacy_windows=False, _environ={}, **console))
    file.flush()
    return file.buffer.getvalue().decode(encoding)


def test_picture(comparison: Comparison) -> None:
    lines = printed(comparison, force_terminal=True, no_color=True).splitlines()
    text = [ESCAPE.sub("", line).rstrip() for line in lines]
    assert text[1] == "paceline  20261121-031500-train-3fa2 → 20261121-031600-train-93cc"
    assert text[2] == "✗ regression"
    assert re.match(r"  A step takes 2[45]% more time \(95% interval \+2\d% to \+2\d%\): a regression", text[3])
    assert any(re.match(r"  data wait +0 s +10\.1 ms +\+10\.1 ms \(\+10\.1 to \+10\.1 ms\)$", line) for line in text)
    assert any(re.match(r"  why      of the change, data wait \d+% \(\+10\.1 ms\)$", line) for line in text)
    assert "  differs  torch: 2.13.0 → 2.14.0" in text
    assert any(line.startswith("  next     paceline explain ") for line in text[-3:])
    assert max(map(len, text)) <= 80


def test_the_time_of_the_whole_runs_is_shown(comparison: Comparison) -> None:
    assert "\nwhole run: 10.0 s -> 10.0 s, +0.0%\n" in printed(comparison)
    shorter = dataclasses.replace(
        comparison.after, wall_s=4.0, ranks=[dataclasses.replace(r, steps=60) for r in comparison.after.ranks]
    )
    unequal = dataclasses.replace(comparison, after=shorter)
    assert "\nwhole run: 10.0 s (120 steps) -> 4.00 s (60 steps)\n" in printed(unequal)
    assert comparison_to_json(unequal)["after"]["wall_s"] == 4.0


@pytest.mark.parametrize("width", [60, 80])
def test_columns_that_do_not_fit_are_stacked(comparison: Comparison, width: int) -> None:
    lines = ESCAPE.sub("", printed(comparison, width, force_terminal=True, no_color=True)).splitlines()
    assert max(map(len, lines)) <= max(width, len("paceline  20261121-031500-train-3fa2 → 20261121-031600-train-93cc"))
    assert any("+10.1 ms (+10.1 to +10.1 ms)" in line for line in lines)


def test_log_has_no_prefix_and_no_escapes(comparison: Comparison) -> None:
    text = printed(comparison)
    assert not any(line.startswith("paceline: ") for line in text.splitlines())
    assert "\x1b" not in text
    assert "\ndata wait: 0 s -> 10.1 ms, +10.1 ms" in text


@pytest.mark.parametrize("terminal", [True, False])
def test_ascii_is_enough(comparison: Comparison, terminal: bool) -> None:
    assert "regression" in printed(comparison, encoding="ascii", force_terminal=terminal)


@pytest.mark.parametrize("terminal", [True, False])
def test_hostile_names_move_no_cursor(comparison: Comparison, terminal: bool) -> None:
    evil = "\x1b[2Jgone\r\n[bold]x[/bold]"
    before = dataclasses.replace(comparison.before, run_id=evil)
    difference = SettingDifference(name=evil, before=evil, after=evil)
    text = printed(dataclasses.replace(comparison, before=before, differences=[difference]), force_terminal=terminal)
    assert "\x1b[2J" not in text
    assert "[bold]" in text


def test_markdown(comparison: Comparison) -> None:
    text = comparison_to_markdown(comparison)
    assert text.startswith("### 🔴 `regression`\n\na step takes")
    assert "| data wait | 0 s | 10.1 ms | **+10.1 ms (+10.1 to +10.1 ms)** |" in text
    assert text.count("\n|") == len(rows(comparison)) + 2


def test_json_is_plain_and_complete(comparison: Comparison) -> None:
    found = json.loads(json.dumps(comparison_to_json(comparison), allow_nan=False))
    assert list(found)[:2] == ["schema", "version"]
    assert found["schema"] == "paceline.compare/1"
    assert found["outcome"] == "regression"
    assert found["phases"]["data_wait"]["after_s"] == pytest.approx(0.0101)
    assert found["time_ratio"]["value"] == pytest.approx(0.0513 / 0.0412, rel=0.01)
    assert set(found["before"]) == set(found["after"])
    assert found["loss"]["steps_common"] == COUNT


def test_too_short_has_no_table(comparison: Comparison, tmp_path: Path) -> None:
    short = write_run(tmp_path / "short", steady_rows([0.1] * 6))
    found = compare(read_run(short), read_run(short), 0.05)
    assert comparison_to_json(found)["time_ratio"] is None
    assert "cannot tell" in printed(found, force_terminal=True).lower()
    assert "cannot tell" in comparison_to_markdown(found)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (Interval(value=0.0012, low=0.0009, high=0.0016, count=9), "+1.20 ms (+0.900 to +1.60 ms)"),
        (Interval(value=-0.0113, low=-0.0217, high=-0.0000902, count=9), "-11.3 ms (-21.7 to -0.0902 ms)"),
        (Interval(value=2.0, low=-1.0, high=5.0, count=9), "+2.00 s (-1.00 to +5.00 s)"),
        (Interval(value=0.0, low=0.0, high=0.0, count=9), "+0 µs (+0 to +0 µs)"),
    ],
)
def test_bounds_share_a_unit(change: Interval, text: str) -> None:
    assert signed_interval(change) == text


def test_ratio_as_a_change() -> None:
    assert (relative(1.123), relative(0.5), relative(1.0)) == ("+12%", "-50%", "+0.0%")
