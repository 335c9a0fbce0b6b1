"""Queues of a loader, played: against laws that any queue obeys, and against a grid that was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.explain.analysis.test_loader_model import loader_model
from tests.report.sample import loader

from paceline.explain.analysis.queueing import Queue, QueueSimulation

MEASURED = Path(__file__).parents[3] / "benchmarks" / "results" / "tune-2026-11-21.json"


def played(*times: tuple[int, float], workers: int = 2, factor: int = 2, **needs: float) -> QueueSimulation:
    """Return a loader whose batches take so long, each so often; the CPU is no bound unless it is said."""
    made = sum(count * seconds for count, seconds in times)
    needs = {"make_cpu_s": 0.0, "hand_over_s": 0.0, "other_cpu_s": 0.0, "compute_s": 0.0, **needs}
    return QueueSimulation(
        loader_model=loader_model(workers=workers, make_s=made / sum(count for count, _ in times), **needs),
        loader=loader(workers=workers, settings={"prefetch_factor": factor}, batch_times=times),
    )


@pytest.mark.parametrize("workers, bound", [(1, 0.04), (2, 0.02), (4, 0.01), (8, 0.01)])
def test_equal_batches_are_bound_by_making_or_by_computing(workers, bound):
    assert played((100, 0.04), compute_s=0.01).step_s(Queue(workers=workers, factor=2)) == pytest.approx(
        bound, rel=0.001
    )


def test_a_longer_queue_and_more_workers_are_never_slower():
    jitter = played((95, 0.01), (5, 0.3), compute_s=0.013)
    steps = [[jitter.step_s(Queue(workers=w, factor=f)) for f in (2, 4, 8, 16, 32)] for w in (1, 2, 4, 8)]
    assert all(row == sorted(row, reverse=True) for row in steps)
    assert all(list(column) == sorted(column, reverse=True) for column in zip(*steps, strict=True))
    assert min(map(min, steps)) == pytest.approx(0.013, rel=0.01)


def test_cores_bound_what_any_queue_gives():
    burns = played((95, 0.01), (5, 0.3), compute_s=0.01, make_cpu_s=0.05, cores=2.0)
    assert burns.step_s(Queue(workers=16, factor=16)) == pytest.approx(0.025)


def test_it_tells_what_a_grid_of_queues_measured():
    """One sample in 160 takes 300 ms, the others 1 ms, in batches of 8: `jitter` of the benchmark, 2 cores."""
    cells = json.loads(MEASURED.read_text())["programs"]["jitter"]["grid"]["cells"]
    jitter = played((95, 0.0095), (5, 0.3085), compute_s=0.0128)
    apart = []
    for cell in cells:
        own = cell["recipe"]["loader"]
        if own["num_workers"] >= 2:
            queue = Queue(workers=own["num_workers"], factor=own["prefetch_factor"])
            told = jitter.step_s(jitter.now) / jitter.step_s(queue)
            apart.append(told / (cell["baseline_step_s"] / cell["step_s"]))
    assert len(apart) == 15
    assert all(0.75 <= ratio <= 1.35 for ratio in apart), apart
    assert sorted(apart)[7] == pytest.approx(1.0, abs=0.1)


def test_what_is_proposed_is_near_the_best_where_training_computes_faster_once_it_need_not_wait():
    jitter = played((95, 0.0095), (5, 0.3085), compute_s=0.0085)
    warm = played((95, 0.0095), (5, 0.3085), compute_s=0.0085 / jitter.loader_model.warmer)
    best = min(warm.step_s(Queue(workers=w, factor=f)) for w in (4, 8) for f in (2, 4, 8, 16, 32))
    assert jitter.loader_model.warmer > 1.1
    assert warm.step_s(jitter.better()[0]) <= 1.01 * best


def test_what_is_proposed():
    jitter = played((95, 0.0095), (5, 0.3085), compute_s=0.0128)
    wide, deep = jitter.better()
    assert (wide.workers, deep.workers) == (8, 2)
    assert wide.batches < deep.batches
    assert min(jitter.gain(wide).high, jitter.gain(deep).high) > 1.9
    assert played((95, 0.0095), (5, 0.3085), compute_s=0.05, factor=16).better() == []  # it rides over them already
    assert played((100, 0.01), compute_s=0.013).better() == []  # nothing waits
    assert played((95, 0.0095), (5, 0.3085), compute_s=0.0128, make_cpu_s=0.06, cores=2.0).better() == []
