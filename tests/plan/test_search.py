from __future__ import annotations

import tomllib
from dataclasses import replace
from datetime import date

import pytest
from tests.plan.cases import memory_of, step_of

from paceline.core.errors import UsageError
from paceline.hardware.catalogue import find_instance
from paceline.plan.advice import Target, advise
from paceline.plan.catalogue import Limits, offers
from paceline.plan.constants import fitted
from paceline.plan.described import machines
from paceline.plan.fits import SURE
from paceline.plan.money import age_days, cost
from paceline.plan.named import named
from paceline.plan.played import closer
from paceline.plan.search import Wish, largest_batch, search
from paceline.plan.setting import parse_layout
from paceline.plan.written import to_toml
from paceline.report.plan_json import offers_to_json
from paceline.report.plan_terminal import lines_of, offer_lines
from paceline.train.recipe import made

TODAY = date(2026, 11, 22)


def wish(name="Llama-3-8B", spec="16xH100-SXM", batch=256, **more):
    return Wish(model=named(name), cluster=machines(spec, 8, None).cluster, global_batch=batch, **more)


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
        alone = closer(case, fitted().constants) if plan.stages else None
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
    held = {name: closer(plan.case, fitted().constants).memory.total[0] for name, plan in plans.items()}
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


def test_a_recipe_in_8_bits_asks_the_engine_for_them():
    plan = search(wish(precision="fp8", by_engine=True), fitted()).plans[0]
    taken = made(tomllib.loads(to_toml(plan, "x", "adamw")))
    assert (taken.precision.fp8, taken.precision.autocast) == (True, "bf16")


def test_a_recipe_has_the_layout_and_what_the_engine_sets():
    found = search(wish("Llama-3-70B", "64xH100-SXM", 512, by_engine=True), fitted())
    for plan in found.plans:
        recipe = tomllib.loads(to_toml(plan, "64 x H100-SXM", "adamw"))
        layout = parse_layout(recipe["layout"])
        assert layout == plan.case.layout
        assert sum(size > 1 for size in (layout.dp, layout.shard, layout.tp, layout.pp, layout.cp)) <= 3
        assert recipe["memory"]["micro_batches"] == plan.case.training.micro_steps
        assert recipe["precision"] == {"autocast": "bf16"}
        assert ("pipeline" in recipe) == (layout.pp > 1)
        taken = made(recipe)  # by the engine itself
        assert taken.pipeline.stages_each == plan.case.training.chunks


def test_money_is_time_times_price_and_spot_adds_what_interruptions_take():
    rented = machines("2xp5.48xlarge", None, None)
    best = search(Wish(model=named("Llama-3-8B"), cluster=rented.cluster, global_batch=256), fitted()).plans[0]
    found = cost(best, rented, 1000, 0.1, (None, "", TODAY))
    assert found.hours == pytest.approx(best.step_s * 1000 / 3600)
    assert found.usd == pytest.approx(found.hours * rented.usd_per_hour)
    assert found.usd_low < found.usd < found.usd_high
    assert found.most_energy_kwh == pytest.approx(found.hours_high * 16 * 0.7)  # 700 W each
    assert found.spot.hours > found.hours
    assert found.spot.checkpoint_every_s > 60
    assert cost(best, rented, 1000, 0.1, (10.0, "given", TODAY)).usd == pytest.approx(10 * found.hours)


def test_a_price_has_an_age():
    assert age_days("x generated 2026-07-20 (Apache-2.0)", TODAY) == 125
    assert age_days("skypilot-catalog v8", TODAY) is None
    assert age_days("2026-99-99", TODAY) is None


def test_unknown_prices_are_none_and_never_zero():
    cards = machines("16xH100-SXM", 8, None)
    advice = advise(wish(), cards, Target(tokens=1e9, today=TODAY), fitted())
    assert advice.cost.usd is None
    assert advice.cost.hours > 0


def test_scaling_names_the_plan_asked_for_as_the_whole():
    advice = advise(wish(), machines("16xH100-SXM", 8, None), Target(today=TODAY), fitted())
    same = [each for each in advice.scaling if each.plan.case.cluster.count == 16]
    assert same[0].efficiency == pytest.approx(1.0)
    assert advice.cost is None


def test_a_narrower_format_is_told_beside_the_plan():
    advice = advise(
        wish(layout=parse_layout("shard=16")), machines("16xH100-SXM", 8, None), Target(today=TODAY), fitted()
    )
    (fp8,) = advice.formats
    assert (advice.best.case.training.precision, fp8.case.training.precision) == ("bf16", "fp8")
    assert fp8.step_s < advice.best.step_s
    assert "`paceline explain precision.fp8` describes how to use this data type" in list(lines_of(advice))
    on_ampere = wish(spec="16xA100-80GB-SXM", layout=parse_layout("shard=16"))
    assert advise(on_ampere, machines("16xA100-80GB-SXM", 8, None), Target(today=TODAY), fitted()).formats == ()


def test_every_second_block_lies_between_none_and_all():
    layout = parse_layout("shard=16")
    plans = {
        way: search(wish(ways=(way,), layout=layout, micro_batch=1), fitted()).nearest
        for way in ("none", "half", "full")
    }
    assert plans["none"].step_s < plans["half"].step_s < plans["full"].step_s
    assert plans["none"].memory_bytes > plans["half"].memory_bytes > plans["full"].memory_bytes
    assert made(tomllib.loads(to_toml(plans["half"], "x", "adamw"))).memory.checkpoint_every == 2


def test_the_least_spot_price_is_told_also_of_machines_that_others_beat_on_demand():
    table = tuple(
        replace(find_instance(name), region="here", on_demand_usd_h=usd, spot_usd_h=spot, spot_source="a list")
        for name, usd, spot in (("p5.48xlarge", 30.0, None), ("p4de.24xlarge", 25.0, 4.0))
    )
    compared = offers(wish(batch=64), 100, Limits(nodes=(2,), table=table), fitted())
    assert {offer.machines.instance.instance_type for offer in compared.best} == {"p5.48xlarge"}
    assert compared.cheapest_spot.machines.instance.instance_type == "p4de.24xlarge"
    said = "\n".join(offer_lines(compared, TODAY))
    assert "on 2 x aws/p4de.24xlarge, here, the cheapest spot machine\n  a list" in said
    assert offers_to_json(compared)["cheapest_spot"]["spot"]["usd"] < compared.best[0].usd


def test_offers_keep_to_their_limits_and_beat_each_other():
    limits = Limits(usd_per_hour=200.0, region="us-east-1", nodes=(1, 2))
    compared = offers(wish(batch=64), 100, limits, fitted())
    found = compared.best
    assert all(any(each.usd <= other.usd and each.hours <= other.hours for each in found) for other in compared.beaten)
    assert all(offer.machines.usd_per_hour <= 200 and offer.machines.instance.region == "us-east-1" for offer in found)
    assert [offer.usd for offer in found] == sorted(offer.usd for offer in found)
    assert [offer.hours for offer in found] == sorted((offer.hours for offer in found), reverse=True)
    with pytest.raises(UsageError, match="no instance in the table qualifies"):
        offers(wish(batch=64), 100, Limits(usd_per_hour=0.01, region="us-east-1", nodes=(1,)), fitted())
