"""What a search tells of the last recorded run of its program, and which options a next search gets."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.explain.written_run import steady_rows, write_launch, write_rank

from paceline.cli.base.program import typed_options
from paceline.cli.tune import _last_run, command

LINE = ["python", "train.py"]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / ".paceline" / "runs"


def write(folder: Path, **end: object) -> None:
    write_launch(folder, **{"wall_s": 25.0} | end)  # type: ignore[arg-type]
    write_rank(folder, steady_rows([0.1] * 200))


def test_a_complete_run_gives_the_share_of_steps(runs: Path) -> None:
    write(runs / "one")
    found = _last_run(LINE)
    assert found["last_failure"] is None
    assert (found["whole_run"].run_id, found["whole_run"].wall_s) == ("one", 25.0)
    assert found["whole_run"].steps_s == pytest.approx(20.0)


def test_a_run_that_crashed_is_told(runs: Path) -> None:
    write(runs / "one", exit_code=1)
    found = _last_run(LINE)
    assert found["whole_run"] is None
    assert found["last_failure"].startswith("exited with code 1")


@pytest.mark.parametrize("signal, code", [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_run_that_somebody_ended_is_no_crash(runs: Path, signal: str, code: int) -> None:
    write(runs / "one", exit_code=code, signal=signal)
    assert _last_run(LINE)["last_failure"] is None


def test_runs_of_other_programs_tell_nothing(runs: Path) -> None:
    assert _last_run(LINE) == {}
    write(runs / "one")
    assert _last_run([*LINE, "--epochs", "2"]) == {}


def test_typed_options_are_those_of_the_command_line_in_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options with a default value, or from the environment, need not be typed again."""
    monkeypatch.setenv("PACELINE_TUNE_TRIALS", "7")
    given = ["--python-sandbox", "--goal", "time", "--recipe", "my recipe.toml", "--budget", "5m", "train.py"]
    context = command.make_context("tune", given)
    with context:
        text = typed_options(("python_sandbox", "goal", "recipe", "allow_network", "trials"))
    assert text == "--python-sandbox --goal time --recipe 'my recipe.toml' "
