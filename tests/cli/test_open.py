"""Does `--open` open the page that was written, and does a place without a browser do no harm?"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.cli.conftest import Paceline

CAPTURE = Path(__file__).parents[1] / "traces" / "captures" / "resnet50_w4_a.json.gz"
TRAINS = """
import torch
weight = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(weight.parameters(), lr=0.1)
for step in range(5):
    weight(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
raise SystemExit(7)
"""
NONE = {"BROWSER": "", "DISPLAY": "", "WAYLAND_DISPLAY": "", "PATH": "/nonexistent"}


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file to which a fake browser writes the addresses that it is given."""
    script, log = tmp_path / "browser.sh", tmp_path / "opened.txt"
    script.write_text(f'#!/bin/sh\necho "$1" >> {log}\n')
    script.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{script} %s")
    log.touch()
    return log


def test_report_opens_the_page_of_the_run(paceline: Paceline, place: Path, opened: Path) -> None:
    done = paceline("report", "slow", "--open")
    assert done.returncode == 0
    assert opened.read_text().split() == [(place / ".paceline/runs/slow/report.html").as_uri()]


def test_run_opens_the_page_and_keeps_the_exit_code(paceline: Paceline, place: Path, opened: Path) -> None:
    (place / "short.py").write_text(TRAINS)
    done = paceline("run", "--open", "--run-id", "short", "short.py")
    assert done.returncode == 7
    assert opened.read_text().split() == [(place / ".paceline/runs/short/report.html").as_uri()]


def test_compare_writes_a_page_where_none_was_named(paceline: Paceline, place: Path, opened: Path) -> None:
    done = paceline("compare", "slow", "fast", "--open")
    page = place / ".paceline/pages/compare.html"
    assert "wrote .paceline/pages/compare.html" in done.stderr
    assert opened.read_text().split() == [page.as_uri()]
    assert "paceline compare" in page.read_text()


def test_trace_opens_the_page_that_was_named(paceline: Paceline, place: Path, opened: Path) -> None:
    done = paceline("trace", str(CAPTURE), "--processes", "1", "--html", "seen.html", "--open")
    assert done.returncode == 0
    assert opened.read_text().split() == [(place / "seen.html").as_uri()]


def test_plan_opens_the_page(paceline: Paceline, place: Path, opened: Path) -> None:
    paceline("plan", "llama-3-8b", "--gpus", "8xH100-SXM", "--html", "plan.html", "--open")
    assert opened.read_text().split() == [(place / "plan.html").as_uri()]
    assert "paceline plan --recipe recipe.toml llama-3-8b --gpus 8xH100-SXM" in plain(place / "plan.html")


def plain(page: Path) -> str:
    """The text of a page without its tags."""
    return page.read_text().replace("<span>", "").replace("</span>", "")


def test_nothing_is_opened_where_nothing_was_written(paceline: Paceline, opened: Path) -> None:
    assert paceline("compare", "slow", "nosuchrun", "--open").returncode == 2
    assert opened.read_text() == ""


def test_without_a_browser_one_line_says_so(paceline: Paceline) -> None:
    done = paceline("compare", "slow", "fast", "--html", "seen.html", "--open", **NONE)
    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if "browser" in line] == [
        "paceline: no web browser could be started here; the HTML report is in seen.html"
    ]


def test_a_list_of_runs_has_no_page_to_open(paceline: Paceline) -> None:
    done = paceline("report", "--open")
    assert done.returncode == 2
    assert "need a run" in done.stderr


def test_run_says_its_next_command_on_its_page(place: Path, paceline: Paceline) -> None:
    done = paceline("report", "slow")
    (following,) = [line for line in done.stdout.splitlines() if line.startswith("next: ")]
    command, _, text = following.removeprefix("next: ").partition("  # ")
    assert plain(place / ".paceline/runs/slow/report.html").count(f"<code>{command}</code>") >= 2
    assert text.capitalize() in plain(place / ".paceline/runs/slow/report.html")
    assert os.path.exists(place / ".paceline/runs/slow/report.html")
