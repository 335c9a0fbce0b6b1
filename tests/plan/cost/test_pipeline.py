from __future__ import annotations

import pytest
from tests.plan.cases import case, memory_of, step_of

from paceline.core.errors import UsageError
from paceline.plan.cost.case import CHUNKED, SCHEDULES
from paceline.plan.cost.constants import fitted
from paceline.plan.cost.partition import blocks_per_stage
from paceline.plan.cost.pipeline import (
    Pipe,
    StagePasses,
    Task,
    micro_batches_saved,
    simulate,
    simulate_case,
    spans,
    tasks_of_rank,
)
from paceline.train.parallel.balance import cut

SHAPES = [(2, 8), (4, 8), (4, 32), (8, 16)]
BACKWARD = 1.5, 0.75  # for the stage before, for weights


def even(pipe: Pipe, sent_s: float = 0.0) -> StagePasses:
    """Stages that take 1 s forward together, whatever their number."""
    stages = pipe.ranks * pipe.chunks
    durations = [(each / pipe.chunks,) * stages for each in (1.0, *BACKWARD)]
    return StagePasses(forward_s=durations[0], input_s=durations[1], weight_s=durations[2], sent_s=sent_s)


def pipes(schedule):
    for ranks, micro_steps in SHAPES:
        for chunks in (2, 4) if schedule in CHUNKED else (1,):
            yield Pipe(schedule, ranks, chunks, micro_steps)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_even_stages_wait_as_long_as_the_closed_form_says(schedule):
    """(p - 1) of m + p - 1 periods, (p - 1) / v of them interleaved; zero-bubble fills it with weights, twice."""
    for pipe in pipes(schedule):
        run = simulate(pipe, even(pipe))
        period = 1 + sum(BACKWARD)
        filled = 2 * BACKWARD[1] if schedule == "zero-bubble" else 0.0
        idle = (pipe.ranks - 1) / pipe.chunks * (period - filled)
        assert run.total_s == pytest.approx(pipe.micro_steps * period + idle)
        assert run.idle == pytest.approx(idle / run.total_s)
    if schedule in ("gpipe", "1f1b"):
        assert run.idle == pytest.approx((pipe.ranks - 1) / (pipe.micro_steps + pipe.ranks - 1))


def test_what_is_kept_is_that_of_the_schedule():
    p, m, v = 4, 16, 2
    assert micro_batches_saved(Pipe("gpipe", p, 1, m)) == (m,) * p
    assert micro_batches_saved(Pipe("1f1b", p, 1, m)) == tuple(min(m, p - rank) for rank in range(p))
    interleaved = micro_batches_saved(Pipe("interleaved", p, v, m))
    assert interleaved[0] == p + (p - 1) / v
    assert interleaved[-1] == ((v - 1) * p + 1) / v
    assert micro_batches_saved(Pipe("zero-bubble", p, v, m)) == (p,) * p


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_each_task_runs_once_after_what_it_needs(schedule):
    for pipe in pipes(schedule):
        passes = even(pipe, sent_s=0.25)
        all_spans = spans(pipe, passes)
        when = {task: (begin, end) for rank in all_spans for task, begin, end in rank}
        stages = pipe.ranks * pipe.chunks
        halves = 2 if schedule == "zero-bubble" else 1
        assert len(when) == stages * pipe.micro_steps * (1 + halves)
        back = "input" if schedule == "zero-bubble" else "backward"
        for task, (begin, _) in when.items():
            if task.kind == "forward" and task.stage > 0:
                assert begin >= when[task._replace(stage=task.stage - 1)][1] + 0.25 - 1e-9
            if task.kind == back and task.stage < stages - 1:
                assert begin >= when[task._replace(stage=task.stage + 1)][1] + 0.25 - 1e-9
            if task.kind == "weight":
                assert begin >= when[task._replace(kind="input")][1]
        for rank in all_spans:
            assert all(first[2] <= second[1] + 1e-9 for first, second in zip(rank, rank[1:]))


def test_many_micro_batches_are_told_from_a_few_rounds():
    pipe = Pipe("1f1b", 4, 1, 96)
    uneven = StagePasses(forward_s=(1.0, 1.2, 0.9, 1.1), input_s=(1.0, 1.1, 1.0, 1.3), weight_s=(0.9,) * 4, sent_s=0.1)
    assert simulate(pipe, uneven).total_s == pytest.approx(max(rank[-1][2] for rank in spans(pipe, uneven)), rel=0.005)


def test_the_slowest_stage_sets_the_pace():
    pipe = Pipe("1f1b", 4, 1, 64)
    slow = StagePasses(forward_s=(1.0, 1.0, 2.0, 1.0), input_s=(1.0, 1.0, 2.0, 1.0), weight_s=(1.0, 1.0, 2.0, 1.0))
    run = simulate(pipe, slow)
    assert run.busy_s.index(max(run.busy_s)) == 2
    assert 64 * 6 < run.total_s < 64 * 6 + 4 * 6


@pytest.mark.parametrize(("schedule", "micro_steps"), [("1f1b", 3), ("interleaved", 6), ("zero-bubble", 6)])
def test_micro_batches_that_do_not_go_round_are_refused(schedule, micro_steps):
    with pytest.raises(UsageError, match="micro-batches"):
        tasks_of_rank(Pipe(schedule, 4, 2, micro_steps), 0)


def test_orders_are_those_that_torch_runs():
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    classes = {"interleaved": "ScheduleInterleaved1F1B", "zero-bubble": "ScheduleInterleavedZeroBubble"}
    words = {"FORWARD": "forward", "FULL_BACKWARD": "backward", "BACKWARD_INPUT": "input", "BACKWARD_WEIGHT": "weight"}
    for schedule, name in classes.items():
        for pipe in pipes(schedule):
            for rank in range(pipe.ranks):
                theirs = object.__new__(getattr(schedules, name))
                theirs.rank, theirs.pp_group_size, theirs.n_local_stages = rank, pipe.ranks, pipe.chunks
                theirs._n_microbatches, theirs.microbatches_per_round = pipe.micro_steps, pipe.ranks
                actions = filter(None, theirs._calculate_single_rank_operations(rank))
                named = [Task(words[a.computation_type.name], a.stage_index, a.microbatch_index) for a in actions]
                assert named == tasks_of_rank(pipe, rank)


@pytest.mark.parametrize("head", [0.1, 1.0, 1.23, 5.2])
def test_stages_cost_as_little_as_those_that_the_engine_cuts(head):
    for layers, stages in [(8, 1), (7, 3), (32, 4), (31, 16), (12, 12), (40, 6)]:
        blocks = blocks_per_stage(layers, head, stages)
        costs = [0.0, *[1.0] * layers, head]
        assert sum(blocks) == layers
        dearest = max(sum(costs[index] for index in part) for part in cut(costs, stages))
        assert max([*blocks[:-1], blocks[-1] + head]) == pytest.approx(dearest)


@pytest.mark.parametrize(("schedule", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero-bubble", 2)])
def test_a_played_plan_comes_near_its_closed_form(schedule, chunks):
    one = case("Llama-3-70B", count=64, tp=8, pp=8, micro_steps=32, schedule=schedule, chunks=chunks, balanced=True)
    found, closed = simulate_case(one, fitted().constants), step_of(one)
    assert found.step.total[0] == pytest.approx(closed.total[0], rel=0.05)
    assert 0.85 < found.memory.total[0] / memory_of(one).total[0] <= 1.0
    assert found.step.bubble[0] > 0
