"""Which lines wait for the device: stacks as they would be sampled."""

from __future__ import annotations

import os

import pytest
import torch

from paceline.inprocess.recorder.stacks.sampler import kind_of, label
from paceline.inprocess.recorder.stacks.syncs import SyncLines


def code_of(tmp_path, source: str, name: str = "train.py"):
    path = tmp_path / name
    path.write_text(source + "\n")
    return compile(source, str(path), "exec")


def in_torch(name: str):
    return compile("pass", os.path.join(os.path.dirname(torch.__file__), name), "exec")


@pytest.fixture
def lines():
    return SyncLines(kind_of, label)


@pytest.mark.parametrize(
    "source",
    [
        "total += loss.item()",
        "log(loss.cpu())",
        "values = out.detach().to('cpu')",
        "print(loss)",
        "torch.cuda.synchronize()",
        "total += float(loss)",
        "ids = out.argmax(-1).tolist()",
    ],
)
def test_a_line_that_asks_for_a_value(lines, tmp_path, source):
    code = code_of(tmp_path, source)
    lines.count([(code, 1)], "mid")
    (found,) = lines.as_json()
    where = {"function": "<module> (train.py:1)", "file": str(tmp_path / "train.py")}
    assert found == {"slot": "mid", **where, "text": source, "count": 1}


@pytest.mark.parametrize("source", ["loss = model(x)", "itemise(x)", "loss.backward()", "footprint(x)", "x = y.cpus"])
def test_a_line_that_does_not(lines, tmp_path, source):
    lines.count([(code_of(tmp_path, source), 1)], "mid")
    assert lines.as_json() == []


@pytest.mark.parametrize("file", ["_tensor.py", "_tensor_str.py", "cuda/__init__.py", "cuda/streams.py"])
def test_a_wait_that_goes_through_torchs_python(lines, tmp_path, file):
    lines.count([(in_torch(file), 1), (code_of(tmp_path, "print(loss.item())"), 1)], "other")
    assert len(lines.as_json()) == 1


def test_other_work_on_the_line_is_no_wait(lines, tmp_path):
    """A model that runs on the same line as ``.item()``: the innermost frame is torch's."""
    lines.count([(in_torch("nn/functional.py"), 1), (code_of(tmp_path, "t += model(x).item()"), 1)], "forward")
    assert lines.as_json() == []


def test_a_call_of_the_programs_own_is_looked_at_itself(lines, tmp_path):
    inner, outer = code_of(tmp_path, "return_ = x + 1", "metrics.py"), code_of(tmp_path, "f(loss.item())")
    lines.count([(inner, 1), (outer, 1)], "other")
    assert lines.as_json() == []


def test_most_frequent_first(lines, tmp_path):
    code = code_of(tmp_path, "a = x.item()\nb = y.item()")
    for line in (1, 2, 2):
        lines.count([(code, line)], "other")
    assert [e["count"] for e in lines.as_json()] == [2, 1]
