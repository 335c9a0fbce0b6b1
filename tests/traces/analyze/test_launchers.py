"""Who launched the work that GPUs did?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.traces.read.test_kineto import kernel, written

from paceline.traces.analyze.launchers import UNKNOWN, is_the_users, launchers_in
from paceline.traces.read import kineto

CAPTURES = Path(__file__).parents[1] / "captures"


def on_host(ts: float, dur: float, name: str, cat: str = "cpu_op", tid: int = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": tid, "args": args}


def python(ts: float, dur: float, name: str) -> dict[str, Any]:
    return on_host(ts, dur, name, "python_function")


def launch(ts: float, number: int, tid: int = 1) -> dict[str, Any]:
    return on_host(ts, 1, "cudaLaunchKernel", "cuda_runtime", tid, correlation=number)


def times(launchers) -> dict[str, int]:
    return {one.name: one.total_ns for one in launchers}


def test_a_launch_belongs_to_what_is_innermost_on_its_thread(tmp_path):
    events = [
        python(0, 100, "train.py(31): step"),
        python(1, 60, "nn.Module: Net_0"),
        python(2, 30, "torch/nn/modules/module.py(1736): _call_impl"),
        python(3, 20, "nn.Module: Linear_0"),
        on_host(4, 10, "aten::linear"),
        on_host(5, 8, "aten::addmm"),
        launch(6, 1),
        on_host(40, 10, "aten::relu"),
        launch(41, 2),
        on_host(0, 100, "AddmmBackward0", tid=2),  # beside, on autograd's thread
        launch(42, 3, tid=2),
        kernel(200, 7, correlation=1),
        kernel(210, 5, correlation=2),
        kernel(220, 3, correlation=3),
        kernel(230, 2, correlation=99),
        kernel(240, 1),
    ]
    found = launchers_in(written(tmp_path, events))
    assert found.total_ns == 18_000
    assert times(found.operators) == {
        "aten::addmm": 7_000,
        "aten::relu": 5_000,
        "AddmmBackward0": 3_000,
        UNKNOWN: 3_000,
    }
    assert times(found.modules) == {"Linear_0": 7_000, "Net_0": 5_000, UNKNOWN: 6_000}
    assert times(found.lines) == {"train.py(31): step": 12_000, UNKNOWN: 6_000}


def test_backward_is_its_forwards_modules_and_lines(tmp_path):
    """Autograd launches on a thread without modules: the node has the number of the operator that made it."""
    node = "autograd::engine::evaluate_function: AddmmBackward0"
    events = [
        python(0, 100, "train.py(31): step"),
        python(1, 30, "nn.Module: Linear_0"),
        on_host(2, 20, "aten::linear", **{"Sequence number": 6, "Fwd thread id": 0}),
        on_host(3, 1, "aten::t", **{"Sequence number": 6, "Fwd thread id": 0}),
        on_host(5, 10, "aten::addmm", **{"Sequence number": 7, "Fwd thread id": 0}),
        python(40, 30, "nn.Module: Loss_0"),
        on_host(41, 5, "aten::nll_loss", **{"Sequence number": 8, "Fwd thread id": 0}),
        on_host(0, 100, node, tid=2, **{"Sequence number": 7, "Fwd thread id": 1}),
        on_host(1, 90, "aten::mm", tid=2),
        launch(42, 1, tid=2),
        kernel(200, 7, correlation=1),
    ]
    found = launchers_in(written(tmp_path, events))
    assert times(found.operators) == {"aten::mm": 7_000}
    assert times(found.modules) == {"Linear_0": 7_000}
    assert times(found.lines) == {"train.py(31): step": 7_000}


def test_without_gpu_work_operators_have_the_cpus_time_less_what_is_within(tmp_path):
    events = [
        python(0, 100, "train.py(31): step"),
        python(3, 20, "nn.Module: Linear_0"),
        on_host(4, 10, "aten::linear"),
        on_host(5, 6, "aten::addmm", **{"Input Dims": [[4], [2, 3], [3, 4]], "Input type": ["float"] * 3}),
        on_host(6, 1, "aten::expand"),
        on_host(40, 10, "aten::relu"),
        on_host(60, 5, "aten::relu"),
    ]
    found = launchers_in(written(tmp_path, events))
    assert found.on_cpu
    assert found.total_ns == 25_000
    assert times(found.operators) == {
        "aten::relu": 15_000,
        "aten::addmm": 5_000,
        "aten::linear": 4_000,
        "aten::expand": 1_000,
    }
    assert times(found.modules) == {UNKNOWN: 15_000, "Linear_0": 10_000}
    assert found.operators[0].launches == 2
    (product,) = found.products
    assert (product.flops, product.total_ns) == (2 * 2 * 3 * 4, 6_000)


def test_a_product_within_another_is_the_one_that_counts(tmp_path):
    """A convolution with a bias: cuDNN's part is the product, and the kernel that adds the bias is none."""
    shapes = {"Input Dims": [[2, 3, 8, 8], [4, 3, 3, 3], [4]], "Input type": ["float"] * 3}
    values = ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"]
    inner = ["", "", "[0, 0]", "[1, 1]", "[1, 1]", "1"]
    events = [
        on_host(0, 50, "aten::convolution", **shapes, **{"Concrete Inputs": values}),
        on_host(1, 48, "aten::_convolution", **shapes, **{"Concrete Inputs": values}),
        on_host(2, 10, "aten::cudnn_convolution", **shapes, **{"Concrete Inputs": inner}),
        launch(3, 1),
        on_host(20, 10, "aten::add_"),
        launch(21, 2),
        kernel(100, 50, correlation=1),
        kernel(160, 5, correlation=2),
    ]
    (product,) = launchers_in(written(tmp_path, events)).products
    assert (product.name, product.calls, product.total_ns) == ("aten::cudnn_convolution", 1, 50_000)
    assert product.flops == 2 * 2 * 4 * 6 * 6 * 3 * 3 * 3


def test_a_launch_of_several_events_counts_once(tmp_path):
    events = [on_host(0, 10, "aten::sum"), launch(1, 1), kernel(20, 2, correlation=1), kernel(30, 3, correlation=1)]
    (one,) = launchers_in(written(tmp_path, events)).operators
    assert (one.name, one.launches, one.total_ns) == ("aten::sum", 1, 5_000)


@pytest.mark.parametrize(
    "name, users",
    [
        ("train.py(31): step", True),
        ("/home/me/project/models/net.py(7): forward", True),
        ("torch/optim/adam.py(165): step", False),
        ("threading.py(1002): _bootstrap", False),
        ("/usr/lib/python3.11/contextlib.py(81): inner", False),
        ("/opt/venv/lib/python3.11/site-packages/lightning/loop.py(3): run", False),
        ("<built-in method add of type object at 0x7f>", False),
        ("nn.Module: Linear_0", False),
    ],
)
def test_whose_line_it_is(name, users):
    assert is_the_users(name) is users


@pytest.mark.parametrize("file", ["b200_eager.json.gz", "dlrm8_rank0.json.gz", "resnet50_w4_a.json.gz"])
def test_each_way_adds_up_to_the_time_of_all_gpu_events(file):
    found = launchers_in(CAPTURES / file)
    events = kineto.read(CAPTURES / file).events
    assert found.total_ns == int((events.end_ns - events.start_ns).sum())
    for launchers in (found.operators, found.modules, found.lines):
        assert sum(one.total_ns for one in launchers) == found.total_ns
    assert found.operators[0].name != UNKNOWN


def test_older_profilers_tell_the_stack_with_the_operator(tmp_path):
    """Before PyTorch 1.12 operators carried their callers, the innermost first; there were no Python functions."""
    stack = "/env/site-packages/torch/nn/functional.py(1847): linear;/home/me/train.py(31): step;/home/me/train.py(90)"
    operator = on_host(0, 20, "aten::addmm", "Operator", **{"Call stack": stack})
    path = written(tmp_path, [operator, launch(5, 1), kernel(10, 20, correlation=1)])
    assert [line.name for line in launchers_in(path).lines] == ["/home/me/train.py(31): step"]
