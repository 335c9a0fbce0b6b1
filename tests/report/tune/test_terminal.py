"""What a person sees when tuning is over: within any width, a line a trial in a log, no foreign control characters."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console
from tests.report.tune import tune_sample

from paceline.explain.comparison import WholeRun
from paceline.explain.next_step import NextStep
from paceline.report.tune.json import tuned_json
from paceline.report.tune.terminal import render
from paceline.report.tune.words import failure_line, safety_line, whole_line
from paceline.tune.search.next_step import next_steps

COLOUR = re.compile("\x1b\\[[0-9;]*m")


def printed(scene: str, width: int = 80, *, terminal: bool = True, file: io.TextIOBase | None = None) -> str:
    tuned = tune_sample.SCENES[scene]()
    written = file or io.StringIO()
    console = Console(file=written, width=width, force_terminal=terminal, _environ={})  # type: ignore[arg-type]
    recipe = "recipe.toml" if tuned.best else None
    render(tuned, recipe_file=recipe, steps=next_steps(tuned, tune_sample.PROGRAM, recipe), console=console)
    written.flush()
    text = written.getvalue() if isinstance(written, io.StringIO) else written.buffer.getvalue().decode()  # type: ignore[attr-defined]
    return COLOUR.sub("", text)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("scene", ["tuned", "no_win", "for_memory", "for_money"])
def test_figures_stand_in_columns_within_the_width(scene: str, width: int) -> None:
    lines = [line for line in printed(scene, width).splitlines() if not line.startswith("paceline: ")]
    assert max(map(len, lines)) <= width
    head = next(line for line in lines if "achieved" in line)
    measured = [line for line in lines if re.search(r"^\S .*\d pairs", line)]
    assert measured
    for line in measured:
        assert re.match(r"\d", line[head.index("achieved") :])
        assert re.match(r"exact|resampled|numeric|semantic", line[head.index("class") :])


def test_a_long_recipe_is_wrapped_between_settings() -> None:
    lines = printed("no_win", 70).splitlines()
    at = next(i for i, line in enumerate(lines) if "num_workers=28" in line)
    assert [line.strip() for line in lines[at : at + 3]] == [
        "loader.num_workers=28, loader.persistent_workers=true,",
        "loader.prefetch_factor=8",
        "the gain is certainly below 2%",
    ]


def test_only_what_a_trial_changed_is_shown() -> None:
    lines = [line.strip() for line in printed("tuned").splitlines()]
    assert "loader.num_workers=28" in lines  # its kept workers were kept before
    assert "precision.autocast=bf16" in lines


def test_what_was_not_tried_stands_by_its_reason() -> None:
    assert "needs --allow semantic: batch.size" in printed("tuned")


def test_a_log_gets_a_line_for_each_trial() -> None:
    lines = printed("tuned", terminal=False).splitlines()
    assert all(line.startswith("paceline: ") for line in lines)
    assert sum(line.startswith("paceline: trial: ") for line in lines) == len(tune_sample.TRIALS)


def test_a_log_tells_memory_where_that_is_the_goal_and_no_interval_where_there_is_none() -> None:
    assert re.search(
        r"trial: .*\(exact\): peak memory smaller by a factor of \S+x \(.*pairs\), speed \S+x",
        printed("for_memory", terminal=False),
    )
    far = printed("far_out", terminal=False)
    assert "(1 pair, too few for an interval)" in far
    assert "inf" not in far.replace("information", "")


@pytest.mark.parametrize("terminal", [True, False])
def test_foreign_text_moves_no_cursor(terminal: bool) -> None:
    assert "\x1b" not in printed("hostile", terminal=terminal)


@pytest.mark.parametrize("scene", sorted(tune_sample.SCENES))
def test_ascii_terminals_get_ascii(scene: str) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    assert "paceline: " in printed(scene, file=file)


def test_where_the_program_was_not_watched_again_the_reason_is_told() -> None:
    assert "after: not measured with the recipe: the time budget of 60 s is spent" in " ".join(
        printed("in_turn", 200).split()
    )


def test_the_safety_of_what_was_kept_is_one_line() -> None:
    assert "paceline: safety: exact. Training computes the same numbers." in printed("tuned", 200)
    kept = replace(tune_sample.TRIALS[0], status="kept", safety="resampled")
    said = safety_line(tune_sample.tuned(trials=(kept,)))
    assert said.startswith("safety: resampled. Training sees the same samples in the same order")
    assert said.endswith("If each sample gets the same random numbers, training computes the same numbers.")


def test_what_looked_best_is_said_with_what_is_known_of_it() -> None:
    text = printed("unproven", terminal=False)
    assert "no gain was proven: the baseline is kept" in text
    looked = "loader.num_workers=2, 8.20x (5 pairs, too few for an interval) over the baseline; not proven"
    assert f"looked best: {looked}" in text
    assert "proof: " in text


def test_the_speed_up_is_said_to_be_of_a_step_and_what_it_means_for_a_whole_run() -> None:
    assert re.search(r"best: .* 9\.00x \(.*\) per step over the baseline", printed("tuned", 200))
    assert "whole run: the speed-up is that of a step" in printed("tuned", 200)
    run = WholeRun(run_id="20261124-train", wall_s=60.0, steps_s=45.0, steps=300)
    said = str(whole_line(tune_sample.tuned(whole_run=run)))
    assert said.startswith(
        "whole run: about 3.00x (95% CI 2.48–3.46, 12 pairs), because in the last complete run (20261124-train) 75% of "
        "60.0 s were steps, and only steps become faster"
    )
    told = tuned_json(tune_sample.tuned(whole_run=run), None)["whole_run"]
    assert told["speedup"] == pytest.approx(3.0)
    assert told["speedup_low"] == pytest.approx(60 / (15 + 45 / 4.88))
    assert told["speedup_high"] == pytest.approx(60 / (15 + 45 / 19.2))


def test_a_whole_run_is_expected_also_where_there_are_too_few_pairs_for_an_interval() -> None:
    run = WholeRun(run_id="20261124-train", wall_s=60.0, steps_s=45.0, steps=300)
    few = tune_sample.tuned(whole_run=run, speedup=tune_sample.factor(3.0, 0.0, math.inf, 1))
    assert str(whole_line(few)).startswith("whole run: about 2.00x (1 pair, too few for an interval), because in the")
    told = tuned_json(few, None)["whole_run"]
    assert (told["speedup"], told["speedup_high"]) == (pytest.approx(2.0), None)


def test_steps_before_a_recipe_is_in_force_stay_as_slow_in_the_whole_run() -> None:
    run = WholeRun(run_id="20261124-train", wall_s=60.0, steps_s=45.0, steps=300)
    warmed = tune_sample.tuned(whole_run=run, warmup_steps=100)
    assert tuned_json(warmed, None)["whole_run"]["speedup"] == pytest.approx(60 / (15 + 15 + 30 / 9))
    assert "and only steps after the first 100 become faster" in str(whole_line(warmed))


def test_larger_batches_are_not_said_to_make_a_step_faster() -> None:
    assert "per step over" not in printed("for_money", 200)
    assert not tune_sample.for_money().is_per_step
    assert whole_line(tune_sample.for_money()) is None


def test_a_program_whose_last_run_crashed_is_told_to_have() -> None:
    why = "exited with code 1: IndexError: Target 7 is out of bounds at crash.py:47"
    said = str(failure_line(tune_sample.tuned(last_failure=why)))
    assert f"crash: the last recorded run of this program {why}; tune runs only the first steps" in said
    assert failure_line(tune_sample.tuned()) is None


def test_what_earlier_trials_corrected_stands_beside_what_the_findings_say() -> None:
    log = printed("tuned", 300, terminal=False)
    said = "expected 3.10x to 6.60x (findings: 2.40x to 5.80x; corrected with earlier trials)"
    assert said in log
    assert "expected 1.05x to 1.60x, proven" in log  # nothing was corrected


def test_each_next_command_is_in_the_json_file() -> None:
    steps = [NextStep(text="run it", command="paceline run train.py"), NextStep(text="train longer", command=None)]
    found = tuned_json(tune_sample.tuned(), None, steps)["next"]
    assert found == [{"command": "paceline run train.py", "text": "run it"}, {"command": None, "text": "train longer"}]


def test_only_one_command_is_the_next_one() -> None:
    steps = [NextStep(text="run it", command="paceline run a.py"), NextStep(text="allow", command="paceline tune a.py")]
    console = Console(file=io.StringIO(), width=200)
    render(tune_sample.tuned(), recipe_file=None, steps=steps, console=console)
    lines = console.file.getvalue().splitlines()
    assert lines[-2:] == ["paceline: next: paceline run a.py  # run it", "paceline: or: paceline tune a.py  # allow"]
