"""What is tried after what, on a real program of which only the races are played."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import pytest

from paceline.core.recipe import describe_recipe, merge_recipes
from paceline.core.statistics import Interval
from paceline.explain.next_step import named_remedy
from paceline.tune.comparison.model import ComparisonResult
from paceline.tune.comparison.paired_blocks import ComparisonRound
from paceline.tune.search import search as tune
from paceline.tune.search.history import TrialHistory
from paceline.tune.search.runner import TrialRunner

pytestmark = pytest.mark.timeout(240)

PROGRAM = """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(40)])
optimizer = torch.optim.Adam(model.parameters())
while True:
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
WAITS = """
import time
import torch

class Far(torch.utils.data.Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, number):
        time.sleep(0.004)
        return torch.ones(8)

if __name__ == "__main__":
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        for x in torch.utils.data.DataLoader(Far(), batch_size=4):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
"""
FUSED, BF16 = "optimizer.fused=true", "precision.autocast=bf16"


def raced(gain: float, verdict: str, earlier: tuple[ComparisonRound, ...] = ()) -> ComparisonResult:
    rounds = [*earlier, ComparisonRound(warmup=[], pairs=[], over=False)]
    speedup = Interval(value=gain, low=gain / 1.1, high=gain * 1.1, count=20)
    return ComparisonResult(speedup=speedup, saving=None, cpu_ratio=None, rounds=rounds, verdict=verdict)


@pytest.fixture
def search(tmp_path, monkeypatch):
    """Search for changes of a program with races that are played."""

    def searched(program, compare, budget_s=600.0):
        (tmp_path / "train.py").write_text(program)
        monkeypatch.setattr(TrialRunner, "compare", compare)
        limits = tune.SearchLimits(
            budget_s=budget_s,
            trials=30,
            allowed=("exact", "numeric"),
            goal="time",
            verify_quality=False,
            price_per_hour=None,
        )
        command = [sys.executable, "train.py"]
        return tune.Search(
            command, tmp_path / "tunes", tmp_path, limits, TrialHistory(None, print), lambda _: None
        ).run()

    return searched


@pytest.fixture
def searched(search):
    """Search where some changes gain so much, undecided until a race has so many rounds; return it and what ran."""

    def searched(gains: dict[str, float], rounds: int):
        seen = []

        def compare(self, contest, until, earlier=()):
            key = describe_recipe(contest.after)
            seen.append((key, len(earlier)))
            gain = gains.get(key, 0.99)
            verdict = "no-win" if gain < 1 else "win" if len(earlier) + 1 >= rounds else "undecided"
            return raced(gain, verdict, tuple(earlier))

        return search(PROGRAM, compare), seen

    return searched


def test_the_race_of_a_single_change_goes_on_when_nothing_else_is_left(searched):
    tuned, seen = searched({FUSED: 1.06}, rounds=3)
    assert [earlier for key, earlier in seen if key == FUSED] == [0, 1, 2, 0, 1, 2]  # and once more at the end
    assert describe_recipe(tuned.best) == FUSED
    assert [(t.status, t.rounds) for t in tuned.trials if describe_recipe(t.recipe) == FUSED] == [("kept", 3)]
    assert len({trial.id for trial in tuned.trials}) == len(tuned.trials)


def test_it_ends_where_more_rounds_say_nothing(searched):
    tuned, seen = searched({FUSED: 1.06}, rounds=99)
    assert len([key for key, _ in seen if key == FUSED]) == 9
    assert not tuned.best
    assert [t.status for t in tuned.trials if describe_recipe(t.recipe) == FUSED] == ["undecided"]
    assert tuned.stopped == "no untried change could give a speed-up of 2% or more"


def test_nothing_is_begun_when_what_was_kept_took_more_than_the_budget(search, monkeypatch):
    """Watching a compiled program once more takes as long as compiling it; what was found stands without."""
    monkeypatch.setattr(tune.Search, "_left_s", lambda self: -10.0 if self._kept else 30.0)
    watched, watch = [], TrialRunner.watch
    monkeypatch.setattr(TrialRunner, "watch", lambda self, recipe: watched.append(recipe) or watch(self, recipe))
    tuned = search(PROGRAM, lambda self, contest, until, earlier=(): raced(1.5, "win"), budget_s=60.0)
    assert [trial.status for trial in tuned.trials if trial.status == "kept"] == ["kept"]
    assert tuned.stopped == "the time budget of 60 s is spent"
    assert (watched, tuned.after, tuned.speedup.value) == ([{}], None, 1.5)


def test_what_was_kept_is_compared_once_more_and_that_figure_is_shown(search):
    """The race that was won is the lucky one of many."""
    contests = []

    def compare(self, contest, until, earlier=()):
        contests.append((describe_recipe(contest.before), describe_recipe(contest.after)))
        if contest.after.get("optimizer") != {"fused": True} or contest.before.get("optimizer"):
            return raced(0.9, "no-win")
        return raced(1.5 if contests.count(contests[-1]) == 1 else 1.3, "win")

    tuned = search(PROGRAM, compare)
    assert contests[-1] == (describe_recipe({}), FUSED)
    assert tuned.speedup.value == 1.3
    assert [trial.speedup.value for trial in tuned.trials if trial.status == "kept"] == [1.5]


@pytest.mark.parametrize("again, verdict", [(0.8, "undecided"), (1.05, "undecided"), (1.01, "no-win")])
def test_what_a_second_comparison_does_not_confirm_is_not_kept(search, again, verdict):
    seen = []

    def compare(self, contest, until, earlier=()):
        if contest.after != {"optimizer": {"fused": True}}:
            return raced(0.9, "no-win")
        seen.append(contest)
        return raced(1.5, "win") if len(seen) == 1 else raced(again, verdict)

    tuned = search(PROGRAM, compare)
    assert (len(seen), tuned.best, tuned.speedup) == (2, {}, None)
    (trial,) = [trial for trial in tuned.trials if trial.recipe == {"optimizer": {"fused": True}}]
    assert trial.status == verdict
    assert tuned.unproven == (trial if verdict == "undecided" else None)
    assert "not confirmed" in trial.reason
    assert f"{again:.2f}x" in tuned.stopped


def test_a_second_comparison_that_was_too_short_for_an_interval_is_not_reported(search):
    seen = []

    def compare(self, contest, until, earlier=()):
        if contest.after != {"optimizer": {"fused": True}}:
            return raced(0.9, "no-win")
        seen.append(contest)
        found = raced(1.5 if len(seen) == 1 else 1.2, "win" if len(seen) == 1 else "undecided")
        return found if len(seen) == 1 else replace(found, speedup=replace(found.speedup, low=0.0, high=math.inf))

    tuned = search(PROGRAM, compare)
    assert (len(seen), tuned.best, tuned.speedup.value) == (2, {"optimizer": {"fused": True}}, 1.5)


def test_two_that_are_undecided_are_tried_together_first(searched):
    both = f"{FUSED}, {BF16}"
    tuned, seen = searched({FUSED: 1.06, BF16: 1.05, both: 1.2}, rounds=2)
    ran = [key for key, _ in seen if key in (FUSED, BF16, both)]
    assert sorted(ran[:2]) == sorted([FUSED, BF16])
    assert ran[2] == both


def test_of_the_values_of_a_proven_setting_the_one_that_measured_best_is_kept(search):
    tried = []

    def compare(self, contest, until, earlier=()):
        before, after = (one.get("loader", {}).get("threads") for one in (contest.before, contest.after))
        if contest.before == {} and tried:
            return raced(2.0, "win")  # what was kept, once more
        if before == after:
            return raced(0.9, "no-win")
        tried.append(after)
        return raced(2.0, "win") if len(tried) == 1 else raced(1.08 if len(tried) == 2 else 0.97, "undecided")

    tuned = search(WAITS, compare)
    assert len(tried) >= 2
    assert tuned.best["loader"]["threads"] == tried[1]
    first, second = [trial for trial in tuned.trials if trial.status == "kept"]
    assert (first.reason, second.reason) == (
        "gain proven",
        "the fastest value of a setting with a proven gain",
    )
    assert second.checks


def test_what_was_skipped_is_predicted_for_what_is_kept_by_then(search):
    """Workers take the wait away that threads were expected to take away."""
    compare = lambda self, contest, until, earlier=(): raced(2.0, "win") if not contest.before else raced(0.9, "no-win")  # noqa: E731
    tuned = search(WAITS, compare)
    assert describe_recipe(tuned.best)
    skipped = [trial for trial in tuned.trials if trial.status == "skipped"]
    assert all(trial.predicted is None or merge_recipes(tuned.best, trial.recipe) == trial.recipe for trial in skipped)
    assert len({trial.id for trial in tuned.trials}) == len(tuned.trials)


def test_the_change_that_a_run_proposes_is_tried_first(search):
    tried = []

    def compare(self, contest, until, earlier=()):
        tried.append(contest.after.get("loader", {}))
        return raced(0.9, "no-win")

    tuned = search(WAITS, compare)
    proposed = named_remedy(tuned.before)
    assert proposed == "loader.workers"
    assert "num_workers" in tried[0]
    assert [one for one in tried if "threads" in one] != []
    assert all("num_workers" not in one for one in tried if "threads" in one)  # there are none to take away
