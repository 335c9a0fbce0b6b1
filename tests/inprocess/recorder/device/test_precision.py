"""What is known of number formats, read without a warning and without a change."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from paceline.inprocess import hooks
from paceline.inprocess.recorder.device import precision


@pytest.fixture(autouse=True)
def clean():
    precision._autocast.clear()
    yield
    hooks.undo_all()
    precision._autocast.clear()


def test_autocast_is_seen_where_it_is_entered():
    precision.patch(torch)
    assert precision.describe(torch, "cpu")["autocast"] is None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pass
    assert precision.describe(torch, "cpu")["autocast"] == "bfloat16"
    assert precision.describe(torch, "cuda")["autocast"] is None


def test_autocast_that_is_switched_off_is_none():
    precision.patch(torch)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
        assert not torch.is_autocast_enabled("cpu")
    assert precision.describe(torch, "cpu")["autocast"] is None


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "always", "-c", code], capture_output=True, text=True)


READ = """
import sys, torch
from paceline.inprocess.recorder.device.precision import describe
print(describe(torch)["matmul_tf32"], end=" ")
{change}
print(describe(torch)["matmul_tf32"], end="")
"""


@pytest.mark.parametrize(
    "change",
    [
        'torch.set_float32_matmul_precision("high")',
        "torch.backends.cuda.matmul.allow_tf32 = True",
        'torch.backends.cuda.matmul.fp32_precision = "tf32"',
    ],
)
def test_tf32_however_it_is_asked_for(change):
    """In a process of its own: torch warns once, and refuses to mix its old and its new settings."""
    found, alone = python(READ.format(change=change)), python(f"import torch\n{change}")
    assert found.stdout == "False True"
    assert found.stderr == alone.stderr


def test_settings_of_an_older_torch():
    matmul, cudnn = SimpleNamespace(allow_tf32=True), SimpleNamespace(allow_tf32=False)
    old = SimpleNamespace(backends=SimpleNamespace(cuda=SimpleNamespace(matmul=matmul), cudnn=cudnn))
    assert precision.describe(old) == {"autocast": None, "matmul_tf32": True, "convolution_tf32": False}


def test_settings_that_cannot_be_read_are_none():
    nothing = SimpleNamespace(backends=SimpleNamespace(cuda=SimpleNamespace(matmul=object()), cudnn=object()))
    assert precision.describe(nothing) == {"autocast": None, "matmul_tf32": None, "convolution_tf32": None}
