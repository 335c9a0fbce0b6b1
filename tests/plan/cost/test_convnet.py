from __future__ import annotations

from dataclasses import replace

import pytest
from tests.plan.cases import case
from tests.plan.cost.test_step_time import K
from tests.plan.search.test_convnet_search import wish

from paceline.plan.cost.constants import fitted
from paceline.plan.cost.convnet import conv_step
from paceline.plan.models.convnets import convnet
from paceline.plan.search.search import search


def test_networks_are_bound_by_memory_and_then_by_decoding():
    one = replace(case(count=1, sharded="nothing", micro_batch=256.0, precision="fp16"), model=convnet("ResNet-50"))
    alone = conv_step(one, K)
    assert alone.bandwidth > alone.matrix
    node = replace(one, cluster=replace(one.cluster, count=8, per_node=8), layout=replace(one.layout, shard=1, dp=8))
    assert conv_step(node, K).data > 10 * alone.data


def test_memory_of_a_network_is_that_of_its_parts():
    found = search(wish(256, precision="fp32", states=(4.0, 4.0, 4.0)), fitted()).plans[0]
    parts, model, k = found.memory_parts, convnet("resnet-50"), fitted().constants
    assert parts["weights"] == parts["gradients"] == parts["optimizer"] == 4 * model.params
    assert parts["activations"] == pytest.approx(k.activation * 32 * 4 * model.kept)
    mixed = search(wish(256, micro_batch=32), fitted()).plans[0].memory_parts
    assert mixed["weights"] == 6 * model.params  # and a copy in 16 bits
    assert mixed["activations"] == pytest.approx(parts["activations"] / 2)
