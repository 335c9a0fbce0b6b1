from __future__ import annotations

import tomllib

from tests.plan.search.test_search import wish

from paceline.plan.cost.case import parse_layout
from paceline.plan.cost.constants import fitted
from paceline.plan.cost.plan import recipe_toml
from paceline.plan.search.search import search
from paceline.train.recipe import made


def test_a_recipe_in_8_bits_asks_the_engine_for_them():
    plan = search(wish(precision="fp8", by_engine=True), fitted()).plans[0]
    taken = made(tomllib.loads(recipe_toml(plan, "x", "adamw")))
    assert (taken.precision.fp8, taken.precision.autocast) == (True, "bf16")


def test_a_recipe_has_the_layout_and_what_the_engine_sets():
    found = search(wish("Llama-3-70B", "64xH100-SXM", 512, by_engine=True), fitted())
    for plan in found.plans:
        recipe = tomllib.loads(recipe_toml(plan, "64 x H100-SXM", "adamw"))
        layout = parse_layout(recipe["layout"])
        assert layout == plan.case.layout
        assert sum(size > 1 for size in (layout.dp, layout.shard, layout.tp, layout.pp, layout.cp)) <= 3
        assert recipe["memory"]["micro_batches"] == plan.case.training.micro_steps
        assert recipe["precision"] == {"autocast": "bf16"}
        assert ("pipeline" in recipe) == (layout.pp > 1)
        taken = made(recipe)  # by the engine itself
        assert taken.pipeline.stages_each == plan.case.training.chunks
