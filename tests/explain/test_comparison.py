"""How much of a whole run is steps, and what does a faster step mean for it?"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.explain.written_run import steady_rows, write_launch, write_rank

from paceline.explain.compare import compare
from paceline.explain.comparison import WholeRun, whole_run
from paceline.record.read import read_run
from paceline.report.compare.json import comparison_to_json
from paceline.report.compare.rows import rows


def written(folder: Path, *, step_s: float, wall_s: float, steps: int = 200, exit_code: int = 0) -> Path:
    write_launch(folder, wall_s=wall_s, exit_code=exit_code)
    write_rank(folder, steady_rows([step_s] * steps))
    return folder


def test_the_time_outside_the_steps_stays(tmp_path: Path) -> None:
    one = whole_run(read_run(written(tmp_path / "run", step_s=0.1, wall_s=25.0)))
    assert one is not None
    assert (one.steps, one.outside_s) == (200, pytest.approx(5.0, abs=1e-3))
    assert one.speedup_with(10.0) == pytest.approx(25.0 / 7.0, rel=1e-3)  # and not 10
    assert one.speedup_with(1.0) == pytest.approx(1.0)


@pytest.mark.parametrize("known", [{"exit_code": 1}, {"wall_s": 3.0}])
def test_a_run_that_failed_or_contradicts_itself_says_nothing(tmp_path: Path, known: dict[str, float]) -> None:
    values = {"step_s": 0.1, "wall_s": 25.0} | known
    assert whole_run(read_run(written(tmp_path / "run", **values))) is None  # type: ignore[arg-type]


def test_a_comparison_shows_the_time_of_both_runs(tmp_path: Path) -> None:
    before = read_run(written(tmp_path / "before", step_s=0.1, wall_s=25.0))
    after = read_run(written(tmp_path / "after", step_s=0.01, wall_s=7.0))
    found = compare(before, after, 0.05)
    assert found.ratio is not None
    assert found.ratio.value == pytest.approx(0.1, rel=0.01)
    assert found.whole_ratio == pytest.approx(7.0 / 25.0)
    shown = {row.label: (row.before, row.after, row.change) for row in rows(found)}
    assert shown["whole run"] == ("25.0 s", "7.00 s", "-72%, 3.57x as fast")
    assert shown["outside steps"][:2] == ("5.00 s", "5.00 s")
    told = comparison_to_json(found)
    assert told["whole_run_ratio"] == pytest.approx(0.28)
    assert (told["before"]["wall_s"], told["after"]["wall_s"]) == (25.0, 7.0)


def test_runs_of_unlike_length_have_no_ratio_of_their_whole_time(tmp_path: Path) -> None:
    before = read_run(written(tmp_path / "before", step_s=0.1, wall_s=25.0))
    after = read_run(written(tmp_path / "after", step_s=0.1, wall_s=15.0, steps=100))
    found = compare(before, after, 0.05)
    assert found.whole_ratio is None
    assert next(row.after for row in rows(found) if row.label == "whole run") == "15.0 s (100 steps)"


def test_a_run_that_is_all_steps_becomes_as_much_faster_as_they() -> None:
    one = WholeRun(run_id="x", wall_s=20.0, steps_s=20.0, steps=200)
    assert one.speedup_with(4.0) == pytest.approx(4.0)
    assert one.speedup_with(4.0, 100) == pytest.approx(20 / 12.5)
    assert one.speedup_with(4.0, 1000) == pytest.approx(1.0)  # over before the recipe is in force
