from __future__ import annotations

import pytest

from paceline.core.errors import UsageError
from paceline.plan.cost.machines import parse_machines, parse_network


def test_machines_are_cards_or_instances():
    cards = parse_machines("64xH100", 8, "400gbps")
    assert (cards.cluster.gpu.name, cards.cluster.nodes, cards.cluster.network_bytes_per_s) == ("H100-SXM", 8, 50e9)
    assert cards.usd_per_hour is None
    rented = parse_machines("2xp5.48xlarge", None, None)
    assert (rented.cluster.gpu.name, rented.cluster.count) == ("H100-SXM", 16)
    assert rented.usd_per_hour == 2 * rented.instance.on_demand_usd_h


@pytest.mark.parametrize("text", ["8xVoodoo", "0xH100-SXM", "8xg6f.large"])
def test_other_machines_are_refused(text):
    with pytest.raises(UsageError):
        parse_machines(text, 8, None)


@pytest.mark.parametrize("text", ["400", "fast", "0gbps"])
def test_other_speeds_are_refused(text):
    with pytest.raises(UsageError):
        parse_network(text)
