from __future__ import annotations

import pytest

from paceline.inprocess.first_step.operator_counter import Tally
from paceline.plan.calibrate.local_prediction import live_bytes

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module", params=["cpu", "meta"])
def counted(request):
    weight = torch.ones(64, 32, device=request.param, requires_grad=True)
    inputs = torch.ones(128, 64, device=request.param)
    tally = Tally()
    tally.enter()
    for _ in range(2):
        loss = (inputs @ weight).relu().sum()
        loss.backward()
        weight.grad = None
    tally.part = "optimizer"
    with torch.no_grad():
        weight.mul_(0.5)
    tally.leave()
    _ = inputs + 1  # is not seen
    return tally.described()


def test_operators_come_with_shapes_and_counts_on_any_device(counted):
    found = {(each["op"], each["part"]): each for each in counted["operators"]}
    product = next(each for each in counted["operators"] if each["op"] == "aten.mm.default")
    assert product["args"][0] == {"t": [[128, 64], [64, 1], "float32"]}
    forward = [each for each in counted["operators"] if each["op"] == "aten.mm.default"]
    assert [each["count"] for each in forward] == [2, 2]  # forward, and backward for the weight
    assert found["aten.mul_.Tensor", "optimizer"]["count"] == 1
    assert found["aten.relu.default", "passes"]["count"] == 2
    assert ("aten.add.Tensor", "passes") not in found


def test_what_was_touched_long_ago_is_told_from_what_was_not(counted):
    product = next(each for each in counted["operators"] if each["op"] == "aten.mm.default")
    assert product["reads"]["-1"] == 4 * (128 * 64 + 64 * 32)  # the first time
    assert sum(product["reads"].values()) == 2 * product["reads"]["-1"]


def test_pieces_of_memory_come_and_go(counted):
    sizes, held = counted["sizes"], [number for number, _ in counted["held"]]
    assert sorted(sizes[number] for number in held) == [4 * 64 * 32, 4 * 128 * 64]
    taken = {event for event in counted["memory"] if event > 0}
    given = {-event for event in counted["memory"] if event < 0}
    assert [sizes[event - 1] for event in taken - given] == [4]  # the last loss
    assert 4 * 128 * 64 < live_bytes(counted) < 4 * (128 * 64 + 64 * 32) + 6 * 4 * 128 * 32
