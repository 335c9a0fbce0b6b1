"""What counts of the blocks that two programs play in turn, when batches lay ready before a block began?"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest

from paceline.core.statistics import Interval
from paceline.tune.comparison import paired_blocks as pairing
from paceline.tune.comparison.paired_blocks import (
    BlockPair,
    RoundLimits,
    StoppingLimits,
    StoppingRule,
    fair_pairs,
    measure_copies,
    queue_factor,
    run_round,
    stopping_rule,
)
from paceline.tune.comparison.statistics import speed_up
from paceline.tune.trials.blocks import StepBlock

LIMITS = RoundLimits(step_s=0.04, block_s=0.12, most_steps=1 << 30, warmup_steps=0, budget_s=60, most_s=60, large_s=60)


class Simulated:
    """A program whose loader makes a batch in `load_s`, whose step takes `step_s`, with a queue that may be full."""

    def __init__(self, *, load_s: float, step_s: float, queue: float = 0, ready: float | None = None) -> None:
        self._load_s, self._step_s, self._most = load_s, step_s, queue
        self._queued = queue if ready is None else ready

    def run_steps(self, steps: int, timeout_s: float) -> StepBlock:
        """Play some steps: each takes a batch, and waits for one where none is left."""
        seconds, before = 0.0, self._queued
        for _ in range(steps):
            waits_s = max(0.0, (1 - self._queued) * self._load_s)
            took_s = waits_s + self._step_s
            self._queued = min(self._most, self._queued + took_s / self._load_s - 1)
            seconds += took_s
        used = before - self._queued
        return StepBlock(
            steps=steps, seconds=seconds, cpu_s=0.0, other_cores=0.0, from_queue=used, queued=math.floor(self._queued)
        )


def found(baseline: Simulated, candidate: Simulated, pairs: int = 6) -> float:
    judges = StoppingRule(enough=lambda counted: len(counted) >= pairs, outlook=lambda counted: "promising")
    one = run_round(baseline, candidate, LIMITS, judges)
    return speed_up([[(p.baseline.seconds, p.candidate.seconds) for p in one.fair]]).value


@pytest.mark.parametrize("queue", [0.0, 4.0, 64.0, 400.0])
def test_a_full_queue_at_the_start_makes_nothing_faster(queue):
    """The loader of the candidate is 17 times as fast; while its queue lasts, a step takes a millisecond."""
    baseline = Simulated(load_s=0.17, step_s=0.001)
    assert found(baseline, Simulated(load_s=0.01, step_s=0.001, queue=queue)) == pytest.approx(17, rel=0.15)


@pytest.mark.parametrize("queue", [4.0, 64.0, 400.0])
def test_a_queue_that_empties_slowly_is_taken_off(queue):
    """Steps take a tenth less than batches: the queue lasts for hundreds of steps, in which it hides the loader."""
    baseline = Simulated(load_s=0.1, step_s=0.009)
    assert found(baseline, Simulated(load_s=0.01, step_s=0.009, queue=queue)) == pytest.approx(10, rel=0.1)


@pytest.mark.parametrize("ready", [0.0, 4.0, 64.0])
def test_a_queue_that_stays_full_or_fills_changes_nothing(ready):
    """The loader is faster than the steps: it is the steps that count."""
    baseline = Simulated(load_s=0.1, step_s=0.01)
    assert found(baseline, Simulated(load_s=0.005, step_s=0.01, queue=64, ready=ready)) == pytest.approx(11, rel=0.02)


def test_blocks_that_only_used_up_the_queue_say_nothing():
    pair = BlockPair(
        baseline=StepBlock(steps=4, seconds=1.0, cpu_s=0.0, other_cores=0.0, from_queue=0.0),
        candidate=StepBlock(steps=4, seconds=0.01, cpu_s=0.0, other_cores=0.0, from_queue=4.0),
    )
    assert fair_pairs([pair]) == []


def test_queues_that_are_not_known_change_nothing():
    blocks = [StepBlock(steps=4, seconds=1.0, cpu_s=0.0, other_cores=0.0)] * 3
    assert queue_factor(blocks) == 1.0
    assert queue_factor([]) == 1.0


@pytest.mark.parametrize(("outlook", "pairs"), [("open", 1), ("promising", 4), ("large", 8)])
def test_a_comparison_goes_on_for_as_long_as_what_it_looks_like_is_worth(monkeypatch, outlook, pairs):
    """Each pair takes a second: an open comparison has 0.5 s, a promising one 3.5 s, a large gain 7.5 s."""
    now = [0.0]

    def played(*_):
        while True:
            now[0] += 1.0
            block = StepBlock(steps=1, seconds=0.5, cpu_s=0.0, other_cores=0.0)
            yield BlockPair(baseline=block, candidate=block)

    monkeypatch.setattr(pairing, "_run_pairs", played)
    monkeypatch.setattr(pairing.time, "monotonic", lambda: now[0])
    limits = replace(LIMITS, warm=True, budget_s=0.5, most_s=3.5, large_s=7.5)
    judges = StoppingRule(enough=lambda counted: False, outlook=lambda counted: outlook)
    assert len(run_round(None, None, limits, judges).pairs) == pairs


@pytest.mark.parametrize(
    ("low", "value", "count", "expected"),
    [(0.0, 8.2, 5, "large"), (0.6, 1.6, 40, "open"), (0.9, 1.8, 40, "large"), (0.9, 1.2, 40, "promising")],
)
def test_what_a_comparison_looks_like(low, value, count, expected):
    found = Interval(value=value, low=low, high=math.inf, count=count)
    rules = StoppingLimits(worth=1.02, fewest=16, scatter=0.02, rounds=1)
    assert stopping_rule(lambda pairs: found, rules).outlook([]) == expected


def test_processes_of_the_baseline_are_not_compared_for_longer_than_there_is_time():
    player = Simulated(load_s=0.0, step_s=1.0)
    assert measure_copies([player, player], time.monotonic() - 1.0, step_s=1.0, block_s=0.1, blocks=20) == [[], []]
