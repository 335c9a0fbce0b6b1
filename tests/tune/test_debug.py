"""Debug settings that a recipe keeps off: what is in force, what is computed, and what becomes of the source?"""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.tune.patches.model import SourceFile
from paceline.tune.patches.patch import patched

TRAINS = """
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
torch.autograd.set_detect_anomaly(True)
torch.use_deterministic_algorithms(True, warn_only=True)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    with torch.autograd.detect_anomaly():
        inside = torch.is_anomaly_enabled()
        loss = model(torch.ones(2, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
    optimizer.step()
    print(loss.item().hex())
print(inside, torch.is_anomaly_enabled(), torch.are_deterministic_algorithms_enabled())
"""
OFF = {"debug": {"anomaly_detection": False, "deterministic_algorithms": False}}


def test_a_recipe_keeps_debug_settings_off(ran):
    bare, changed = ran(TRAINS), ran(TRAINS, OFF)
    assert (bare.code, changed.code) == (0, 0)
    assert bare.out.splitlines()[:3] == changed.out.splitlines()[:3]
    assert bare.out.splitlines()[3] == "True True True"
    assert changed.out.splitlines()[3] == "False False False"
    assert set(changed.held) == {"debug.anomaly_detection", "debug.deterministic_algorithms"}


def test_debug_settings_of_the_environment(ran, monkeypatch):
    source = "import torch\nprint(torch.distributed.get_debug_level())\n"
    recipe = {"debug": {"distributed_debug": False, "launch_blocking": False}}
    unset = ran(source, recipe)
    assert "is not set" in unset.refused["debug.distributed_debug"]
    assert "no CUDA device" in unset.refused["debug.launch_blocking"]
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    assert ran(source).out == "DebugLevel.DETAIL\n"
    lowered = ran(source, recipe)
    assert (lowered.out, "debug.distributed_debug" in lowered.held) == ("DebugLevel.INFO\n", True)


@pytest.mark.parametrize(
    "before, after",
    [
        ("torch.autograd.set_detect_anomaly(True)", "torch.autograd.set_detect_anomaly(False)"),
        ("torch.autograd.set_detect_anomaly(mode=True)", "torch.autograd.set_detect_anomaly(mode=False)"),
        (
            "with torch.autograd.detect_anomaly(check_nan=False):\n    train()",
            "with torch.autograd.set_detect_anomaly(False):\n    train()",
        ),
        (
            "torch.use_deterministic_algorithms(True, warn_only=True)",
            "torch.use_deterministic_algorithms(False, warn_only=True)",
        ),
        (
            "import lightning as L\nL.Trainer(detect_anomaly=True, max_epochs=2)",
            "import lightning as L\nL.Trainer(detect_anomaly=False, max_epochs=2)",
        ),
    ],
)
def test_the_source_turns_them_off(before, after):
    source = SourceFile(path=Path("train.py"), text=f"import torch\n{before}\n", is_script=True)
    assert patched([source], OFF).after[0].text == f"import torch\n{after}\n"


def test_what_the_source_does_not_say_stays_in_the_recipe():
    text = "import torch\nfrom torch.autograd import detect_anomaly\ntorch.use_deterministic_algorithms(args.exact)\n"
    text += "with detect_anomaly():\n    pass\n"
    patch = patched([SourceFile(path=Path("train.py"), text=text, is_script=True)], OFF)
    assert patch.after[0].text == text
    stays = {one.setting: one.why for one in patch.stays}
    assert "train.py:3" in stays["debug.deterministic_algorithms"]
    assert "train.py:4" in stays["debug.anomaly_detection"]
    environment = {"debug": {"launch_blocking": False, "distributed_debug": False}}
    assert all("unset" in one.why for one in patched([patch.before[0]], environment).stays)
