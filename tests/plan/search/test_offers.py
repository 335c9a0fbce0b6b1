from __future__ import annotations

from dataclasses import replace

import pytest
from tests.plan.search.test_search import TODAY, wish

from paceline.core.errors import UsageError
from paceline.hardware.catalogue import find_instance
from paceline.plan.cost.constants import fitted
from paceline.plan.search.offers import OfferLimits, find_offers
from paceline.report.plan.json import offers_to_json
from paceline.report.plan.terminal import offer_lines


def test_the_least_spot_price_is_told_also_of_machines_that_others_beat_on_demand():
    table = tuple(
        replace(find_instance(name), region="here", on_demand_usd_h=usd, spot_usd_h=spot, spot_source="a list")
        for name, usd, spot in (("p5.48xlarge", 30.0, None), ("p4de.24xlarge", 25.0, 4.0))
    )
    compared = find_offers(wish(batch=64), 100, OfferLimits(nodes=(2,), table=table), fitted())
    assert {offer.machines.instance.instance_type for offer in compared.best} == {"p5.48xlarge"}
    assert compared.cheapest_spot.machines.instance.instance_type == "p4de.24xlarge"
    said = "\n".join(offer_lines(compared, TODAY))
    assert "on 2 x aws/p4de.24xlarge, here, the cheapest spot machine\n  a list" in said
    assert offers_to_json(compared)["cheapest_spot"]["spot"]["usd"] < compared.best[0].usd


def test_offers_keep_to_their_limits_and_beat_each_other():
    limits = OfferLimits(usd_per_hour=200.0, region="us-east-1", nodes=(1, 2))
    compared = find_offers(wish(batch=64), 100, limits, fitted())
    found = compared.best
    assert all(any(each.usd <= other.usd and each.hours <= other.hours for each in found) for other in compared.beaten)
    assert all(offer.machines.usd_per_hour <= 200 and offer.machines.instance.region == "us-east-1" for offer in found)
    assert [offer.usd for offer in found] == sorted(offer.usd for offer in found)
    assert [offer.hours for offer in found] == sorted((offer.hours for offer in found), reverse=True)
    with pytest.raises(UsageError, match="no instance in the table qualifies"):
        find_offers(wish(batch=64), 100, OfferLimits(usd_per_hour=0.01, region="us-east-1", nodes=(1,)), fitted())
