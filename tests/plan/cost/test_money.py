from __future__ import annotations

import pytest
from tests.plan.search.test_search import TODAY, wish

from paceline.plan.cost.constants import fitted
from paceline.plan.cost.machines import parse_machines
from paceline.plan.cost.money import age_days, training_cost
from paceline.plan.models.lookup import published_transformer
from paceline.plan.search.advice import Target, advise
from paceline.plan.search.search import search
from paceline.plan.search.wish import Wish


def test_money_is_time_times_price_and_spot_adds_what_interruptions_take():
    rented = parse_machines("2xp5.48xlarge", None, None)
    best = search(
        Wish(model=published_transformer("Llama-3-8B"), cluster=rented.cluster, global_batch=256), fitted()
    ).plans[0]
    found = training_cost(best, rented, 1000, 0.1, (None, "", TODAY))
    assert found.hours == pytest.approx(best.step_s * 1000 / 3600)
    assert found.usd == pytest.approx(found.hours * rented.usd_per_hour)
    assert found.usd_low < found.usd < found.usd_high
    assert found.most_energy_kwh == pytest.approx(found.hours_high * 16 * 0.7)  # 700 W each
    assert found.spot.hours > found.hours
    assert found.spot.checkpoint_every_s > 60
    assert training_cost(best, rented, 1000, 0.1, (10.0, "given", TODAY)).usd == pytest.approx(10 * found.hours)


def test_a_price_has_an_age():
    assert age_days("x generated 2026-07-20 (Apache-2.0)", TODAY) == 125
    assert age_days("skypilot-catalog v8", TODAY) is None
    assert age_days("2026-99-99", TODAY) is None


def test_unknown_prices_are_none_and_never_zero():
    cards = parse_machines("16xH100-SXM", 8, None)
    advice = advise(wish(), cards, Target(tokens=1e9, today=TODAY), fitted())
    assert advice.cost.usd is None
    assert advice.cost.hours > 0
