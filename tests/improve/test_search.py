"""What is tried after what, on a real program of which only the races are played."""

from __future__ import annotations

import sys

import pytest

from paceline.explain.model import Interval
from paceline.improve import tune
from paceline.improve.ledger import Ledger
from paceline.improve.pairing import Round
from paceline.improve.recipe import in_words
from paceline.improve.workshop import Race, Workshop

pytestmark = pytest.mark.timeout(120)

PROGRAM = """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(40)])
optimizer = torch.optim.Adam(model.parameters())
while True:
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
FUSED, BF16 = "optimizer.fused=true", "precision.autocast=bf16"


def raced(gain: float, verdict: str, earlier: tuple[Round, ...]) -> Race:
    rounds = [*earlier, Round(warmup=[], pairs=[], over=False)]
    speedup = Interval(value=gain, low=gain / 1.1, high=gain * 1.1, count=20)
    return Race(speedup=speedup, saving=None, cpu_ratio=None, rounds=rounds, verdict=verdict)


@pytest.fixture
def searched(tmp_path, monkeypatch):
    """Search where some changes gain so much, undecided until a race has so many rounds; return it and what ran."""

    def search(gains: dict[str, float], rounds: int):
        (tmp_path / "train.py").write_text(PROGRAM)
        seen = []

        def race(self, contest, until, earlier=()):
            key = in_words(contest.after)
            seen.append((key, len(earlier)))
            gain = gains.get(key, 0.99)
            verdict = "no-win" if gain < 1 else "win" if len(earlier) + 1 >= rounds else "undecided"
            return raced(gain, verdict, tuple(earlier))

        monkeypatch.setattr(Workshop, "race", race)
        limits = tune.Limits(
            budget_s=40.0,
            trials=30,
            allowed=("exact", "numeric"),
            goal="time",
            verify_quality=False,
            price_per_hour=None,
        )
        command = [sys.executable, "train.py"]
        found = tune.Search(command, tmp_path / "tunes", tmp_path, limits, Ledger(None, print), lambda _: None)
        return found.run(), seen

    return search


def test_the_race_of_a_single_change_goes_on_when_nothing_else_is_left(searched):
    tuned, seen = searched({FUSED: 1.06}, rounds=3)
    assert [earlier for key, earlier in seen if key == FUSED] == [0, 1, 2]
    assert in_words(tuned.best) == FUSED
    assert [(t.status, t.rounds) for t in tuned.trials if in_words(t.recipe) == FUSED] == [("kept", 3)]
    assert len({trial.id for trial in tuned.trials}) == len(tuned.trials)


def test_it_ends_where_more_rounds_say_nothing(searched):
    tuned, seen = searched({FUSED: 1.06}, rounds=99)
    assert len([key for key, _ in seen if key == FUSED]) == 9
    assert not tuned.best
    assert tuned.stopped == "nothing is left that could gain 2%"


def test_two_that_are_undecided_are_tried_together_first(searched):
    both = f"{FUSED}, {BF16}"
    tuned, seen = searched({FUSED: 1.06, BF16: 1.05, both: 1.2}, rounds=2)
    ran = [key for key, _ in seen if key in (FUSED, BF16, both)]
    assert sorted(ran[:2]) == sorted([FUSED, BF16])
    assert ran[2] == both
