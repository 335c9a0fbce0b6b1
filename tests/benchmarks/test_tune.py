"""The benchmark of `tune`: its grids, its clock, its judgement. The figures themselves need a machine and an hour."""

from __future__ import annotations

import ast
import json
import sys
import textwrap
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import _clocked  # noqa: E402
import _final  # noqa: E402
import _grid  # noqa: E402
import _tune_table  # noqa: E402
import tune as benchmark  # noqa: E402

CASES = _grid.read_cases()

STEPS = ["--steps", 15]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """The case study's program, with some small pictures."""
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path_factory.mktemp("photos")
    for name, colour in (("sky", "blue"), ("wood", "brown")):
        (folder / name).mkdir()
        image.new("RGB", (96, 72), colour).save(folder / name / "0.jpg")
    return [BENCHMARKS / "case_study_programs" / "photos.py", "--data", folder, "--width", 4]


def made(name: str, *, reached: float = 1.0, cost: float = 0.2, held: bool | None = True, inside: bool = True) -> dict:
    """A row with some figures."""
    return {
        "bottleneck": f"{name} is slow",
        "grid": {"wall_s": 200.0, "best": {"loader": {"num_workers": 2}}, "cells": [{}] * 9},
        "tune": {"wall_s": 200 * cost, "recipe": {"loader": {"num_workers": 2}}},
        "gain": {"median": 1.8, "low": 1.7, "high": 1.9},
        "best_gain": {"median": 1.9, "low": 1.8, "high": 2.0},
        "reached": {"median": reached, "low": reached - 0.02, "high": reached + 0.02},
        "cost": cost,
        "invariants": {"class": "exact", "held": held, "text": ""},
        "kept": [{"remedy": "loader.workers", "inside": inside}],
        "stolen_cores": 0.1,
    }


@pytest.mark.parametrize(
    "reached, rounds, close",
    [(0.94, 3, True), (0.96, 3, True), (0.94, 9, False), (0.92, 3, False), (0.98, 3, False), (0.89, 3, False)],
)
def test_what_is_close_to_what_was_asked_for_is_played_longer(reached, rounds, close):
    row = {**made("it", reached=reached), "step_s": {"bare": [0.01] * rounds}}
    assert benchmark.is_close(row) is close


# -- grids


def test_there_are_ten_programs_of_different_bottlenecks_and_each_has_a_grid():
    assert len(CASES) >= 10
    assert {case.program for case in CASES.values()} == set(_grid.PROGRAMS.glob("*.py"))
    assert all(8 <= len(case.cells) <= 40 for case in CASES.values())


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_a_program_is_one_that_a_user_would_write(case):
    source = case.program.read_text()
    names = {alias.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import) for alias in node.names}
    assert "paceline" not in source
    assert "torch" in names
    assert 30 <= len(source.splitlines()) <= 70
    assert case.warmup % 5 == 0 and case.steps % 5 == 0  # a line is printed every five steps


def test_a_grid_is_the_union_of_products_each_recipe_once_and_without_the_baseline():
    tables = [
        {"loader.num_workers": [0, 2], "loader.prefetch_factor": [2, 8]},
        {"loader.num_workers": [0]},
        {"compute.compile": ["as is", "default"]},
    ]
    assert _grid.cells_of(tables, "here") == [
        {"loader": {"num_workers": 0}},  # a prefetch factor says nothing without workers
        {"loader": {"num_workers": 2, "prefetch_factor": 2}},
        {"loader": {"num_workers": 2, "prefetch_factor": 8}},
        {"compute": {"compile": "default"}},
    ]


def test_a_grid_that_sets_what_there_is_not_is_refused():
    with pytest.raises(Exception, match="loader.workers"):
        _grid.cells_of([{"loader.workers": [2]}], "here")


def test_the_best_of_a_grid_are_the_fastest_beside_their_own_baselines():
    slow, fast, broken, worse = (
        _grid.Cell(recipe={"loader": {"num_workers": 1}}, baseline_step_s=1.0, step_s=0.9),
        _grid.Cell(recipe={"loader": {"num_workers": 2}}, baseline_step_s=3.0, step_s=1.0),
        _grid.Cell(recipe={"loader": {"num_workers": 3}}, baseline_step_s=None, step_s=None, failed="exit code 1"),
        _grid.Cell(recipe={"loader": {"num_workers": 4}}, baseline_step_s=1.0, step_s=1.1),
    )
    assert _grid.finalists([slow, worse, fast, broken]) == [fast.recipe, slow.recipe]
    assert _grid.finalists([slow, fast], count=1) == [fast.recipe]
    assert _grid.finalists([broken, worse]) == [{}]


# -- the clock


def test_steps_are_timed_after_the_warm_up():
    run = _clocked.Clocked(at_s={5: 10.0, 10: 10.5, 15: 11.5}, losses={}, wall_s=12.0)
    assert run.step_s(5) == pytest.approx(0.15)
    with pytest.raises(_clocked.RunFailed, match="step 20"):
        run.step_s(20)


def test_a_program_is_clocked_bare_and_under_a_recipe_and_prints_the_same(photos, tmp_path):
    recipe = {"loader": {"num_workers": 1}}
    commands = {
        "bare": _clocked.bare(*photos, *STEPS),
        "tuned": _clocked.under(recipe, tmp_path, *photos, *STEPS),
    }
    case = _grid.Case(name="photos", bottleneck="", allow="exact", warmup=5, steps=10, cells=[])
    runs = _final.played(commands, 1, tmp_path)
    assert list(runs["bare"][0].losses) == [5, 10, 15]
    assert all(one.step_s(5) > 0 for some in runs.values() for one in some)
    assert _final.invariants(case, "exact", runs, tmp_path)["held"] is True


def test_a_setting_that_does_not_take_hold_is_a_failure_and_not_a_slow_cell(photos, tmp_path):
    command = _clocked.under({"ddp": {"static_graph": True}}, tmp_path, *photos, *STEPS)
    with pytest.raises(_clocked.RunFailed, match="static_graph"):
        _clocked.clocked(command, tmp_path)


def test_a_program_that_fails_or_hangs_says_so(tmp_path):
    def command(source: str) -> list[str]:
        return [sys.executable, "-c", textwrap.dedent(source)]

    with pytest.raises(_clocked.RunFailed, match="exit code 3: no data"):
        _clocked.clocked(command("import sys; print('no data', file=sys.stderr); sys.exit(3)"), tmp_path)
    with pytest.raises(_clocked.RunFailed, match="longer than 1 s"):
        _clocked.clocked(command("import time; time.sleep(60)"), tmp_path, limit_s=1.0)


# -- the last comparison


def ran(step_s: float) -> _clocked.Clocked:
    return _clocked.Clocked(at_s={5: 1.0, 15: 1.0 + 10 * step_s}, losses={}, wall_s=9.0)


@pytest.mark.parametrize(
    "tuned, seconds, best, reached",
    [
        ("other", {"tuned": 0.12}, "b", 0.75),  # slower than the faster of the two
        ("other", {"tuned": 0.06}, "b", 1.5),  # faster than all of the grid
        ("a", {"tuned": 0.12}, "b", 0.75),  # one of them, and the other is faster
        ("b", {"tuned": 0.09}, "b", 1.0),  # the very best
    ],
)
def test_the_tuned_program_is_held_against_the_faster_of_the_finalists(tuned, seconds, best, reached):
    recipes = {"a": {"loader": {"num_workers": 1}}, "b": {"loader": {"num_workers": 2}}, "other": {}}
    words = {"a": "loader.num_workers=1", "b": "loader.num_workers=2"}
    step_s = {"bare": 0.18, words["a"]: 0.1, words["b"]: 0.09, **seconds}
    step_s.pop(words.get(tuned, ""), None)  # it runs once, as the tuned one
    case = _grid.Case(name="x", bottleneck="", allow="exact", warmup=5, steps=10, cells=[])
    runs = {name: [ran(value)] * 3 for name, value in step_s.items()}
    fastest, found = _final.figures(case, [recipes["a"], recipes["b"]], runs)
    assert fastest == recipes[best]
    assert found["reached"]["median"] == pytest.approx(reached)
    assert found["gain"]["median"] == pytest.approx(0.18 / seconds["tuned"])


# -- the same training


def test_exact_is_to_the_last_digit():
    wanted = {5: "0.5", 10: "0.25"}
    assert _final.same_digits(wanted, dict(wanted), repeats=True)["held"] is True
    assert _final.same_digits(wanted, {5: "0.5", 10: "0.2500001"}, repeats=True)["held"] is False
    assert _final.same_digits(wanted, {5: "0.5"}, repeats=True)["held"] is False
    assert _final.same_digits(wanted, {5: "0.6", 10: "0.1"}, repeats=False)["held"] is None


@pytest.mark.parametrize("late, held", [("0.2501", True), ("0.29", False), ("nan", False)])
def test_numeric_is_within_the_scatter_of_seeds(late, held):
    wanted, other = {5: "0.5", 10: "0.25"}, {5: "0.6", 10: "0.26"}
    assert _final.within_scatter(wanted, {5: "0.9", 10: late}, other)["held"] is held


def test_the_class_of_a_recipe_is_the_boldest_of_what_was_kept():
    trials = [{"safety": "numeric", "status": "kept"}, {"safety": "semantic", "status": "no-win"}]
    assert _final.safety_of({"loader": {}}, trials) == "numeric"
    assert _final.safety_of({}, trials) == "exact"


# -- the judgement


def test_all_that_was_asked_for():
    figures = _tune_table.summary({"a": made("a"), "b": made("b", reached=1.04)})
    assert _tune_table.passed(figures)
    assert not _tune_table.passed(_tune_table.summary({}))


@pytest.mark.parametrize(
    "off, where",
    [
        ({"reached": 0.94}, "below_reached"),
        ({"cost": 0.26}, "above_cost"),
        ({"held": False}, "broken"),
    ],
)
def test_one_program_that_falls_short_is_named(off, where):
    figures = _tune_table.summary({"a": made("a"), "b": made("b", **off)})
    assert figures[where] == ["b"]
    assert not _tune_table.passed(figures)
    assert any("not b" in sentence for sentence in _tune_table.sentences(figures))


def test_a_change_that_nothing_was_predicted_of_counts_as_not_predicted():
    rows = {name: made(name) for name in "abcd"}
    assert _tune_table.passed(_tune_table.summary(rows))
    rows["d"]["kept"][0]["inside"] = None
    assert _tune_table.summary(rows)["predicted_share"] == 0.75
    assert not _tune_table.passed(_tune_table.summary(rows))


def test_a_program_that_could_not_be_measured_fails_the_benchmark_and_not_the_table():
    rows = {"a": made("a"), "b": {"bottleneck": "b is slow", "failed": "exit code 1"}}
    result = {"date": "2026-01-01", "device": "CPU", "python": "3.11", "versions": {"torch": "2.13"}, "programs": rows}
    assert not _tune_table.passed(_tune_table.summary(rows))
    text = _tune_table.markdown(result)
    assert "exit code 1" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(widths) == 1


# -- going on


@pytest.fixture
def options(tmp_path):
    return benchmark.parser().parse_args(["--resume", "--out", str(tmp_path)])


def test_what_is_done_is_not_done_again(options, tmp_path, capsys):
    file, result = benchmark.begun(options)
    result["programs"] = {name: made(name) for name in CASES}
    benchmark.written(file, json.dumps(result))
    assert benchmark.compared(list(CASES.values()), options) == 0
    assert f"{len(CASES)} of {len(CASES)} programs" in capsys.readouterr().out


def test_results_of_another_machine_are_not_gone_on_with(options):
    file, result = benchmark.begun(options)
    benchmark.written(file, json.dumps(result | {"device": "CPU, 64 cores"}))
    with pytest.raises(SystemExit, match="64 cores"):
        benchmark.begun(options)


def test_a_program_that_there_is_not_is_told_with_those_there_are():
    with pytest.raises(SystemExit, match=r"no program wait; there are .*waits"):
        benchmark.main(["wait"])
