"""Private names of torch: all that are used are listed, this torch has them, and a missing one costs one part."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.conftest import environment

from paceline.inprocess.recorder import torch_names
from paceline.inprocess.recorder.torch_names import NAMES, missing, patch_part

SRC = Path(__file__).parents[3] / "src"
CHAIN = re.compile(r"\btorch((?:\.[A-Za-z0-9]\w*)*\.(?!__)_\w+(?:\.\w+)*)")
IMPORT = re.compile(r"from (torch[\w.]*) import ([\w, ]+)")


def private_names() -> set[str]:
    found = set()
    for path in (SRC / "paceline").rglob("*.py"):
        text = path.read_text()
        found |= {f"torch{match[1]}" for match in CHAIN.finditer(text)}
        found |= {f"{m[1]}.{n.split(' as ')[0].strip()}" for m in IMPORT.finditer(text) for n in m[2].split(",")}
    private = {name for name in found if any(re.match(r"_(?!_)", part) for part in name.split("."))}
    return private - {"torch._C", "torch._C.Generator"}  # a module of which names are asked, and a name in a text


def test_every_private_name_is_listed():
    listed = [name for names in NAMES.values() for name in names]
    known = [*listed, *(name.rpartition(".")[0] for name in listed)]
    assert (
        sorted(
            n
            for n in private_names()
            if not any(n == k or n.startswith(k + ".") or k.startswith(n + ".") for k in known)
        )
        == []
    )


@pytest.mark.parametrize("part", NAMES)
def test_this_torch_has_every_name(part):
    assert missing(part) == []


def test_a_missing_name_is_found(monkeypatch):
    monkeypatch.setitem(NAMES, "steps", ("torch.autograd._gone", "torch.nn.Module"))
    assert missing("steps") == ["torch.autograd._gone"]


def test_a_part_whose_name_is_missing_is_switched_off_with_a_reason(monkeypatch):
    monkeypatch.setattr(torch_names, "switched_off", {})
    patch_part("communication", lambda: (_ for _ in ()).throw(AttributeError("no Work")))
    assert "no Work" in torch_names.switched_off["communication"]


PROGRAM = """
import torch
from torch.utils.data._utils import fetch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print("trained")
"""
LACKS = """
import importlib.abc, importlib.machinery, sys
class Lacks(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torch.utils.data._utils.fetch":
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            original = spec.loader.exec_module
            def exec_module(module):
                original(module)
                module._IterableDatasetFetcher_ = module._IterableDatasetFetcher
                del module._IterableDatasetFetcher
            spec.loader.exec_module = exec_module
            return spec
sys.meta_path.insert(0, Lacks())
"""


def test_watching_goes_on_without_the_part(tmp_path):
    (tmp_path / "lacks").mkdir()
    (tmp_path / "lacks" / "sitecustomize.py").write_text(LACKS)
    (tmp_path / "train.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "run", "--json", "run.json", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(PYTHONPATH=f"{tmp_path / 'lacks'}:{SRC}"),
    )
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "watching stopped" not in done.stderr
    told = json.loads((tmp_path / "run.json").read_text())
    assert told["steps"]["count"] == 30
    assert "_IterableDatasetFetcher" in told["unavailable"]["loader workers"]
