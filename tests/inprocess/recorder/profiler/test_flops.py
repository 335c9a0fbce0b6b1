"""FLOPs by shapes, against arithmetic and against torch's own counter."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._C._autograd import _disable_profiler_legacy
from torch.utils.flop_counter import FlopCounterMode

from paceline.inprocess.recorder.profiler.flops import StepFlops, count
from paceline.inprocess.recorder.profiler.window import _enable


def counted(step):
    _enable("CPU", shapes=True)
    step()
    return count(_disable_profiler_legacy())


def told_by_torch(step) -> int:
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def backward_of(model, *shape, grad=False):
    batch = torch.randn(*shape, requires_grad=grad)
    return lambda: model(batch).sum().backward()


def test_a_perceptron():
    step = backward_of(nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5)), 8, 20)
    found = counted(step)
    assert sum(found["flops"].values()) == told_by_torch(step)
    assert {"batch": 1, "m": 30, "n": 20, "k": 8, "count": 1} in found["products"]
    assert found["uncounted"] == []


def test_a_transformer():
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    step = backward_of(nn.TransformerEncoder(layer, 2), 4, 16, 32, grad=True)
    found = counted(step)
    assert sum(found["flops"].values()) == told_by_torch(step)


def test_fused_attention():
    query = torch.randn(2, 4, 16, 8, requires_grad=True)
    found = counted(lambda: nn.functional.scaled_dot_product_attention(query, query, query).sum().backward())
    forward = 2 * (2 * 4 * 16) * 16 * (8 + 8)
    assert found["flops"]["attention"] == 3 * forward


def test_a_convolutional_network():
    """Without groups: for those torch's own counter is too high in the backward."""
    model = nn.Sequential(nn.Conv2d(3, 8, 5, 2, 2), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ConvTranspose2d(8, 6, 2, 2))
    step = backward_of(model, 2, 3, 32, 32)
    assert counted(step)["flops"]["convolution"] == told_by_torch(step)


def test_groups():
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, padding=1, groups=4))
    places = 2 * 10 * 10
    assert counted(backward_of(model, 2, 3, 10, 10))["flops"]["convolution"] == (
        2 * (2 * places * 8 * 3) + 3 * (2 * places * 8 * 2 * 9)
    )


def test_one_and_three_dimensions():
    for model, shape in ((nn.Conv1d(4, 6, 3), (2, 4, 20)), (nn.Conv3d(4, 6, 3), (2, 4, 8, 8, 8))):
        step = backward_of(model, *shape)
        assert counted(step)["flops"]["convolution"] == told_by_torch(step)


def test_a_frozen_convolution_counts_forward():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 6 * 6, 2))
    model[0].requires_grad_(False)
    step = backward_of(model, 2, 3, 8, 8)
    assert counted(step)["flops"]["convolution"] == 2 * (2 * 8 * 6 * 6) * 3 * 9


@pytest.mark.parametrize("name", ["aten::_cudnn_rnn", "flash_attn::_flash_attn_forward", "Torch-Compiled Region: 0/0"])
def test_what_shapes_do_not_tell_is_named(name):
    found = StepFlops()
    found.take(name, [])
    assert found.as_json()["uncounted"] in ([name], ["compiled code"])


@pytest.mark.parametrize(
    ("name", "shapes"),
    [("aten::mm", [[], []]), ("aten::mm", []), ("aten::convolution_backward", [[], [], []]), ("aten::bmm", [[3]])],
)
def test_shapes_that_are_missing_count_nothing(name, shapes):
    found = StepFlops()
    found.take(name, shapes)
    assert sum(found.as_json()["flops"].values()) == 0
