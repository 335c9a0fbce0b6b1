from __future__ import annotations

import pytest

from paceline.core.errors import UsageError
from paceline.plan.cost.case import parse_layout
from paceline.plan.cost.constants import SURE, fitted
from paceline.plan.cost.machines import parse_machines
from paceline.plan.models.convnets import convnet
from paceline.plan.search.search import largest_batch, search
from paceline.plan.search.wish import Wish


def wish(batch=2048, **more):
    return Wish(
        model=convnet("resnet-50"),
        cluster=parse_machines("8xA100-80GB-SXM", 8, None).cluster,
        global_batch=batch,
        **more,
    )


def test_plans_of_a_network_divide_the_batch_and_surely_fit():
    found = search(wish(), fitted())
    assert [plan.memory_bytes for plan in found.plans] == sorted((p.memory_bytes for p in found.plans), reverse=True)
    for plan in found.plans:
        assert plan.case.global_batch == 2048
        assert plan.fits >= SURE
    largest = largest_batch(found.plans[0], fitted())
    assert search(wish(8 * largest, micro_batch=largest), fitted()).plans
    assert not search(wish(16 * largest, micro_batch=2 * largest), fitted()).plans


@pytest.mark.parametrize(
    ("change", "message"),
    [({"layout": parse_layout("tp=8")}, "one replica per GPU"), ({"batch": 2047}, "--batch 2040")],
)
def test_what_cannot_be_replicated_is_said(change, message):
    with pytest.raises(UsageError, match=message):
        search(wish(**change), fitted())
