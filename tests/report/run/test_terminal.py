"""What a person sees when the run is over, as pictures in text.

To renew the pictures after an intended change: PACELINE_UPDATE_SNAPSHOTS=1 pytest tests/report/run/test_terminal.py
"""

from __future__ import annotations

import io
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from rich.console import Console
from tests.report import sample
from tests.report.strategies import diagnoses

from paceline.explain.model import Diagnosis
from paceline.explain.next_step import NextStep
from paceline.report.run.terminal import cells, render

SNAPSHOTS = Path(__file__).parent / "snapshots"
REPORT = ".paceline/runs/20261118-142301-a7f3/report.html"
COMMAND = "paceline tune train.py --epochs 6"
NEXT = NextStep(text="try the proposed changes and keep those that help", command=COMMAND)
COLOUR = re.compile("\x1b\\[[0-9;]*m")


def printed(diagnosis: Diagnosis, width: int = 100, *, terminal: bool = True, **console: object) -> str:
    file = console.pop("file", None) or io.StringIO()
    console = {"stderr": True, "legacy_windows": False, "_environ": {}} | console
    made = Console(file=file, width=width, force_terminal=terminal, **console)
    render(diagnosis, report_path=REPORT, following=NEXT, console=made)
    file.flush()
    return file.getvalue() if isinstance(file, io.StringIO) else file.buffer.getvalue().decode(file.encoding)


def compare(name: str, text: str) -> None:
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("PACELINE_UPDATE_SNAPSHOTS"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("scene", ["data_bound", "straggler"])
def test_picture_without_colour(scene: str, width: int) -> None:
    text = COLOUR.sub("", printed(sample.SCENES[scene](), width, no_color=True))
    compare(f"{scene}_{width}", text)


@pytest.mark.parametrize("scene", ["healthy", "crashed", "killed", "running", "too_short", "no_steps", "nan_loss"])
def test_picture_of_each_ending(scene: str) -> None:
    compare(f"{scene}_80", COLOUR.sub("", printed(sample.SCENES[scene](), 80, no_color=True)))


@pytest.mark.parametrize(
    ("reached", "said"),
    [({"step": 1200.0, "seconds": 12.5, "samples": 9600.0}, "at step 1,200, after 12.5 s"), (None, "was not reached")],
)
def test_a_target_loss_is_told(reached: dict[str, float] | None, said: str) -> None:
    diagnosis = sample.SCENES["healthy"]()
    assert diagnosis.loss is not None
    curve = replace(diagnosis.loss, target=0.25, target_reached=reached)
    found = " ".join(printed(replace(diagnosis, loss=curve), no_color=True).split())
    assert "target of 0.25" in found
    assert said in found


@pytest.mark.parametrize("width", [60, 80, 100])
def test_picture_with_colour(width: int) -> None:
    compare(f"data_bound_{width}_colour", printed(sample.diagnosis(), width, color_system="truecolor"))


def test_picture_in_a_job_log() -> None:
    compare("straggler_log", printed(sample.straggler(), 80, terminal=False))


@pytest.mark.parametrize("scene", sample.SCENES)
@pytest.mark.parametrize("width", [60, 80, 100])
def test_short_and_within_the_width(scene: str, width: int) -> None:
    lines = COLOUR.sub("", printed(sample.SCENES[scene](), width)).strip("\n").splitlines()
    copied = ("  report", "  next")
    assert [line for line in lines if len(line) > width and not line.startswith(copied) and scene != "hostile"] == []
    assert width < 100 or scene == "hostile" or len([line for line in lines if line]) <= 15  # one for the target loss


@pytest.mark.parametrize("terminal", [True, False])
def test_path_and_command_can_be_copied(terminal: bool) -> None:
    lines = printed(sample.diagnosis(), 20, terminal=terminal, no_color=True)
    assert REPORT in lines
    assert COMMAND in lines


@pytest.mark.parametrize("terminal", [True, False])
def test_next_to_the_machines_finding_stands_what_the_program_can_gain(terminal: bool) -> None:
    plain = sample.diagnosis()
    machine = replace(
        plain.findings[0], code="HOST003", name="cpu-contended", summary="the cores are taken", remedies=[]
    )
    text = printed(replace(plain, verdict="cpu-contended", findings=[machine, *plain.findings]), 200, terminal=terminal)
    own = plain.findings[0]
    assert f"{own.name} ({own.code}, 1.55x to 2.10x faster if fixed)" in COLOUR.sub("", text)
    assert own.remedies[0].change in text


def test_a_step_without_a_command_is_said() -> None:
    file = io.StringIO()
    step = NextStep(text="run a program that trains", command=None)
    render(sample.diagnosis(), report_path="", following=step, console=Console(file=file, width=100))
    assert "next: run a program that trains\n" in file.getvalue()


def test_the_time_stands_before_the_message_of_an_exception() -> None:
    failed = replace(sample.diagnosis(), exit_code=1, ended="exited with code 1: IndexError at crash.py:6: too large")
    text = printed(failed, 200, terminal=False)
    assert "exited with code 1 after 9 min 01 s: IndexError at crash.py:6: too large · " in text


def test_no_colour_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    file = io.StringIO()
    render(sample.diagnosis(), report_path="", following=None, console=Console(file=file, force_terminal=True))
    assert not re.search("\x1b\\[[0-9;]*(3[0-7]|38)[0-9;]*m", file.getvalue())


def test_log_lines_carry_the_prefix_and_no_escape() -> None:
    text = printed(sample.straggler(), 80, terminal=False)
    assert all(line.startswith("paceline: ") for line in text.splitlines())
    assert "\x1b" not in text


def test_result_on_stdout_has_no_prefix() -> None:
    text = printed(sample.straggler(), 80, terminal=False, stderr=False)
    assert "paceline: " not in text
    assert "\nverdict: rank-straggling" in text


def test_hostile_names_move_no_cursor() -> None:
    colours = COLOUR.sub("", printed(sample.hostile()))
    assert "\x1b" not in colours
    assert "[31m" in colours  # it is shown, without its escape


@pytest.mark.parametrize("terminal", [True, False])
def test_ascii_terminals_get_ascii(terminal: bool) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    text = COLOUR.sub("", printed(sample.diagnosis(), terminal=terminal, file=file))
    assert ("# data wait 61%" if terminal else "phases: data wait 61%") in text


@given(diagnoses)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_diagnosis_prints(diagnosis: Diagnosis) -> None:
    for terminal in (True, False):
        assert "paceline" in printed(diagnosis, 80, terminal=terminal)


@pytest.mark.parametrize("shares", [[1.0], [0.5, 0.5], [0.333, 0.333, 0.334], [0.98, 0.01, 0.01], [1e-9, 1.0]])
def test_cells_fill_the_width(shares: list[float]) -> None:
    for width in (1, 7, 60):
        assert sum(cells(shares, width)) == width
