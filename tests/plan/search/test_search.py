from __future__ import annotations

import tomllib
from dataclasses import replace
from datetime import date

import pytest
from tests.plan.cases import memory_of, step_of

from paceline.core.errors import UsageError
from paceline.plan.cost.case import parse_layout
from paceline.plan.cost.constants import SURE, fitted
from paceline.plan.cost.machines import parse_machines
from paceline.plan.cost.pipeline import simulate_case
from paceline.plan.cost.plan import recipe_toml
from paceline.plan.models.lookup import published_transformer
from paceline.plan.search.search import largest_batch, search
from paceline.plan.search.wish import Wish
from paceline.train.recipe import made

TODAY = date(2026, 11, 22)


def wish(name="Llama-3-8B", spec="16xH100-SXM", batch=256, **more):
    return Wish(
        model=published_transformer(name), cluster=parse_machines(spec, 8, None).cluster, global_batch=batch, **more
    )


def test_every_plan_divides_fits_and_is_predicted_as_it_would_be_alone():
    question = wish("Llama-3-70B", "64xH100-SXM", 512)
    found = search(question, fitted())
    for plan in found.plans:
        case = plan.case
        assert case.layout.ranks == 64
        assert case.global_batch == 512
        assert case.layout.tp <= 8
        assert case.training.micro_steps >= case.layout.pp
        assert plan.fits >= SURE
        assert plan.memory_bytes < case.cluster.memory_bytes
        alone = simulate_case(case, fitted().constants) if plan.stages else None
        seconds, held = (alone.step, alone.memory) if alone else (step_of(case), memory_of(case))
        assert plan.step_s == pytest.approx(seconds.total[0]) == sum(plan.step_parts.values())
        assert plan.memory_bytes == pytest.approx(held.total[0])
        assert plan.reserved_bytes == pytest.approx(held.reserved[0])
        assert plan.allocated_bytes == pytest.approx(held.allocated[0])


def test_pipelines_at_the_front_are_played_with_stages_that_do_not_divide():
    found = search(wish("Llama-3.1-405B", "1024xH100-SXM", 1024), fitted())  # 126 blocks
    first = found.plans[0]
    assert first.case.layout.pp > 1
    assert sum(first.stages.blocks) == 126
    assert len(set(first.stages.blocks)) > 1
    assert max(first.stages.memory_bytes) == pytest.approx(first.memory_bytes)
    assert found.played >= 5


def test_a_schedule_that_is_asked_for_is_the_only_one_and_gpipe_keeps_more():
    layout = parse_layout("pp=4,tp=2,dp=2")
    plans = {
        name: search(wish(schedule=name, layout=layout, micro_batch=1), fitted()).nearest
        for name in ("gpipe", "1f1b", "interleaved", "zero-bubble")
    }
    assert {name: plan.case.training.schedule for name, plan in plans.items()} == {name: name for name in plans}
    usual = search(wish(layout=layout), fitted())
    assert {plan.case.training.schedule for plan in usual.plans} <= {"1f1b", "interleaved"}
    held = {name: simulate_case(plan.case, fitted().constants).memory.total[0] for name, plan in plans.items()}
    assert held["gpipe"] > held["interleaved"] > held["1f1b"]


def test_plans_are_a_front_and_all_others_have_a_reason():
    found = search(wish(), fitted())
    times = [plan.step_s for plan in found.plans]
    held = [plan.memory_bytes for plan in found.plans]
    assert times == sorted(times)
    assert held == sorted(held, reverse=True)
    assert len(found.plans) + sum(found.rejected.values()) == found.looked_at


def test_the_search_finds_what_trying_all_by_hand_finds():
    question = wish(batch=64, spec="8xH100-SXM")
    by_hand = []
    for text in ("shard=8", "dp=2,shard=4", "shard=4,tp=2", "tp=8", "shard=2,pp=4", "dp=8"):
        try:
            plans = search(replace(question, layout=parse_layout(text)), fitted()).plans
        except UsageError:
            continue
        by_hand += [plan.step_s for plan in plans]
    assert search(question, fitted()).plans[0].step_s <= min(by_hand) + 1e-9


def test_kernels_that_are_not_fused_take_longer():
    fused, eager = (search(wish(kernels=kernels), fitted()).plans[0] for kernels in ("fused", "eager"))
    assert eager.step_s > 1.03 * fused.step_s


def test_experts_are_spread_where_that_helps():
    found = search(wish("Qwen3-30B-A3B", "64xGB200", 256), fitted())
    assert any(plan.case.layout.ep > 1 for plan in found.plans)


def test_nothing_that_fits_names_the_nearest():
    found = search(wish("Llama-3-70B", "2xA100-40GB-SXM", 2), fitted())
    assert found.plans == ()
    assert found.nearest.memory_bytes > found.nearest.case.cluster.memory_bytes
    assert sum(found.rejected.values()) == found.looked_at


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 3, "layout": parse_layout("dp=16")}, "no parallel layout splits"),
        ({"layout": parse_layout("tp=2")}, "needs 2 GPUs"),
        ({"layout": parse_layout("pp=16"), "batch": 8}, "fewer micro-batches than pipeline stages"),
        ({"layout": parse_layout("dp=4,cp=2,tp=2"), "by_engine": True}, "cp and tp cannot be combined"),
        ({"layout": parse_layout("dp=16"), "micro_batch": 3}, "not a multiple of the micro-batch 3"),
    ],
)
def test_what_does_not_divide_is_said(change, message):
    with pytest.raises(UsageError, match=message):
        search(wish(**change), fitted())


def test_the_largest_batch_is_the_last_that_fits():
    best = search(wish(batch=4096), fitted()).plans[0]
    largest = largest_batch(best, fitted())
    training = best.case.training
    fits, not_any_more = memory_of(
        *[replace(best.case, training=replace(training, micro_batch=float(size))) for size in (largest, 2 * largest)]
    ).total
    assert fits < best.case.cluster.memory_bytes
    assert not_any_more > 0.85 * best.case.cluster.memory_bytes


def test_every_second_block_lies_between_none_and_all():
    layout = parse_layout("shard=16")
    plans = {
        way: search(wish(ways=(way,), layout=layout, micro_batch=1), fitted()).nearest
        for way in ("none", "half", "full")
    }
    assert plans["none"].step_s < plans["half"].step_s < plans["full"].step_s
    assert plans["none"].memory_bytes > plans["half"].memory_bytes > plans["full"].memory_bytes
    assert made(tomllib.loads(recipe_toml(plans["half"], "x", "adamw"))).memory.checkpoint_every == 2
