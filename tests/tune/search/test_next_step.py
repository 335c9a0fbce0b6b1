"""What is a user told to type after a search?"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.report import sample
from tests.report.tune import tune_sample
from tests.report.tune.tune_sample import factor, gain, trial

from paceline.tune.search.messages import NOT_TRIED, preparation_too_long_message
from paceline.tune.search.next_step import NextStep, busy_text, next_steps

PROGRAM = "train.py --epochs 6"
SKIPPED = {"status": "skipped", "reason": "needs --allow numeric", "speedup": None}

OPEN = trial(
    1, "loader.workers", {"loader": {"num_workers": 2}}, status="undecided", speedup=factor(1.2, 0.9, 1.6), seconds=31.4
)


def skipped(safety, low, high, remedy="precision.autocast"):
    return trial(9, remedy, {}, safety=safety, predicted=gain(low, high), **SKIPPED)


def steps_of(recipe_file=None, **changes) -> list[NextStep]:
    plain = {"trials": (), "best": {}, "speedup": None, "allowed": ("exact", "resampled")}
    return next_steps(tune_sample.tuned(**(plain | changes)), PROGRAM, recipe_file)


def test_what_was_kept_is_run():
    (step,) = steps_of("recipe.toml", best={"loader": {"num_workers": 2}}, speedup=factor(1.6, 1.5, 1.7))
    assert step.command == f"paceline run --recipe recipe.toml {PROGRAM}"


def test_what_is_not_allowed_and_promises_more_is_the_last_line():
    won = {"best": {"loader": {"num_workers": 2}}, "speedup": factor(1.6, 1.5, 1.7)}
    more, less = skipped("numeric", 1.5, 2.5), skipped("numeric", 1.2, 1.4, "compute.compile")
    *_, last = steps_of("recipe.toml", trials=(less, more), **won)
    assert last.command == f"paceline tune --allow numeric {PROGRAM}"
    assert last.text.startswith(
        "precision.autocast was not tried, because it is numeric; its expected speed-up is 1.50x to 2.50x"
    )
    assert len(steps_of("recipe.toml", trials=(less,), **won)) == 1  # it promises less than what was found


def test_a_proposed_search_keeps_the_options_of_this_one():
    tuned = tune_sample.tuned(
        trials=(skipped("numeric", 1.5, 2.5),),
        best={},
        speedup=None,
        allowed=("exact", "resampled"),
        out_of_budget=True,
    )
    commands = [str(step.command) for step in next_steps(tuned, PROGRAM, None, "--python-sandbox --goal time ")]
    assert commands and all(f"--python-sandbox --goal time {PROGRAM}" in command for command in commands)


def test_what_looked_best_can_be_run_though_it_is_not_proven():
    looked = trial(1, "loader.workers", {"loader": {"num_workers": 2}}, speedup=factor(8.2, 0.0, math.inf, pairs=5))
    again, run = steps_of("unproven.toml", unproven=looked, out_of_budget=True)
    assert again.command.startswith("paceline tune --budget")
    assert run.command == f"paceline run --recipe unproven.toml {PROGRAM}"
    assert run.text.startswith("it looked 8.20x faster, which is not proven")


def test_what_was_allowed_and_skipped_is_not_offered_again():
    one = skipped("numeric", 1.5, 2.5)
    steps = steps_of(trials=(one,), allowed=("exact", "resampled", "numeric"))
    assert not any("--allow" in (step.command or "") for step in steps)


def test_without_a_win_the_command_that_allows_more_comes_first():
    step = steps_of(trials=(skipped("numeric", 1.5, 2.5, "loader.threads"),), budget_s=90.0, wall_s=20.0)[0]
    assert step.command == f"paceline tune --allow numeric --budget 90s {PROGRAM}"


@pytest.mark.parametrize(
    "ending", [{}, {"out_of_budget": True}, {"stopped": "interrupted; the result contains the changes kept so far"}]
)
def test_another_training_algorithm_is_never_the_next_step(ending):
    one = skipped("semantic", 1.5, 9.0, "loader.threads")
    assert not any("semantic" in f"{step.command} {step.text}" for step in steps_of(trials=(one,), **ending))


def test_changes_without_a_prediction_are_proposed_if_nothing_else_is_left():
    """A program that only computes gains from lower precision or compilation, which nothing predicts."""
    before = replace(tune_sample.tuned().before, findings=(), verdict="compute-bound")
    unknown = [trial(9, name, {}, safety="numeric", predicted=None, **SKIPPED) for name in ("autocast", "compile")]
    (step,) = steps_of(trials=(*unknown, skipped("numeric", 1.0, 1.05)), before=before, budget_s=600.0, wall_s=9.0)
    assert step.command == f"paceline tune --allow numeric {PROGRAM}"
    assert step.text == "try the numeric changes autocast and compile, whose speed-up cannot be predicted"
    (step,) = steps_of(trials=(skipped("numeric", 1.0, 1.05),), before=before)
    assert step.command == f"paceline run {PROGRAM}"


def test_other_rounding_is_proposed_only_for_a_clear_gain():
    assert not any("--allow" in (step.command or "") for step in steps_of(trials=(skipped("numeric", 1.0, 1.08),)))
    assert any("--allow" in (step.command or "") for step in steps_of(trials=(skipped("numeric", 1.0, 1.4),)))


def test_no_next_command_keeps_a_budget_that_was_too_small():
    commands = [
        step.command or ""
        for step in steps_of(
            trials=(OPEN, skipped("numeric", 1.5, 2.5)), out_of_budget=True, budget_s=240.0, wall_s=217.0
        )
    ]
    assert len(commands) == 2
    assert not any("--budget 4m" in command for command in commands)
    assert commands[0].split("--budget ")[1].split()[0] == commands[1].split("--budget ")[1].split()[0]


def test_the_larger_budget_is_enough_for_what_is_open():
    """1.2x with an interval of a factor of 2 to each side needs 14 times the pairs; the trial took 100 s."""
    near = replace(OPEN, speedup=factor(1.2, 1.0, 1.44), seconds=100.0)
    far = replace(OPEN, speedup=factor(1.2, 0.6, 2.4), seconds=100.0)
    first, second = (
        steps_of(trials=(one,), out_of_budget=True, budget_s=200.0, wall_s=200.0)[0] for one in (near, far)
    )
    assert first.command == f"paceline tune --budget 7m {PROGRAM}"
    assert second.command == f"paceline tune --budget 19m {PROGRAM}"
    assert "loader.workers is undecided (1.20x so far)" in second.text


def test_a_change_that_takes_long_to_prepare_asks_for_a_larger_budget():
    one, allowed = (
        replace(skipped("numeric", 1.1, 1.6), reason=preparation_too_long_message(43.0)),
        ("exact", "resampled", "numeric"),
    )
    (step,) = steps_of(trials=(one,), out_of_budget=True, budget_s=180.0, wall_s=109.0, allowed=allowed)
    assert step.command == f"paceline tune --allow numeric --budget 6m {PROGRAM}"
    assert "1 change had no time" in step.text


def test_a_budget_that_was_too_small_is_said_with_a_larger_one():
    (step,) = steps_of(out_of_budget=True, budget_s=40.0, wall_s=44.0)
    assert (step.text, step.command) == (
        "the time budget was too small for a result",
        f"paceline tune --budget 2m {PROGRAM}",
    )


def test_an_undecided_comparison_asks_for_a_larger_budget():
    (step,) = steps_of(trials=(OPEN,), budget_s=60.0, wall_s=50.0, allowed=("exact", "resampled", "numeric"))
    assert step.text.startswith("too few measurements for a result; loader.workers is undecided (1.20x so far)")
    assert step.command == f"paceline tune --allow numeric --budget 2m {PROGRAM}"


@pytest.mark.parametrize("low, high", [(0.7, 0.9), (1.0, 1.01)])
def test_a_change_that_surely_gains_nothing_asks_for_nothing(low, high):
    lost = trial(1, "loader.workers", {"loader": {"num_workers": 2}}, speedup=factor((low * high) ** 0.5, low, high))
    assert not steps_of(trials=(lost,))[0].text.startswith("too few measurements for a result")


def test_a_program_that_is_too_short_is_said_with_the_steps_it_needs():
    before = sample.diagnosis(step_s=sample.around(0.01, 30))
    (step,) = steps_of(stopped="too short to tune: the program has only 25 steps", before=before)
    assert step.command is None
    assert "about 6,000 steps" in step.text


def test_what_has_to_be_done_by_hand_is_explained():
    before = sample.diagnosis()
    (step,) = steps_of(before=before)
    code = next(f.code for f in before.findings if f.name == before.verdict)
    assert step.command == f"paceline explain {code}"


def test_a_busy_machine_is_said():
    quiet = tune_sample.tuned(other_cores=0.1)
    assert busy_text(quiet) is None
    assert busy_text(replace(quiet, other_cores=None)) is None
    assert "used 1.0 core on average" in str(busy_text(replace(quiet, other_cores=1.0)))


@pytest.mark.parametrize("allowed, option", [(("exact",), " --allow exact"), (("exact", "resampled"), "")])
def test_a_search_that_was_interrupted_is_made_again(allowed, option):
    step = steps_of(stopped="interrupted; the result contains the changes kept so far", allowed=allowed)[0]
    assert step.command == f"paceline tune{option} {PROGRAM}"


def test_only_a_change_that_had_no_time_asks_for_a_larger_budget():
    """A program that fails without the change too needs no larger budget."""
    failed = {"status": "skipped", "speedup": None, "reason": "the unchanged program fails too: it hung"}
    late = {"status": "skipped", "speedup": None, "reason": NOT_TRIED}
    commands = [
        " ".join(step.command or "" for step in steps_of(trials=(trial(1, "loader.workers", {}, **one),)))
        for one in (failed, late)
    ]
    assert ["--budget" in command for command in commands] == [False, True]


def test_a_crash_of_the_program_is_fixed_before_anything_is_searched():
    first, second = steps_of(
        out_of_budget=True, budget_s=40.0, wall_s=44.0, last_failure="exited with code 1: IndexError"
    )
    assert first.command == f"paceline run {PROGRAM}"
    assert "fix the crash first" in first.text
    assert str(second.command).startswith("paceline tune --budget")


def test_a_crash_is_fixed_before_a_recipe_is_used():
    changes = {"best": {"loader": {"num_workers": 2}}, "speedup": factor(2.0, 1.8, 2.2), "last_failure": "IndexError"}
    commands = [step.command for step in steps_of("recipe.toml", **changes)]
    assert commands[:2] == [f"paceline run {PROGRAM}", f"paceline run --recipe recipe.toml {PROGRAM}"]
