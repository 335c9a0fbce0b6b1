"""Does the example train on photographs, write what it was asked for, and go on from its checkpoint in mid-epoch?"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.examples.test_photos import few_photos

from paceline.train import Engine

PROGRAM = Path(__file__).parents[2] / "examples" / "resnet.py"
SMALL = ("--size", 32, "--batch-size", 16, "--depth", 1)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return few_photos(tmp_path_factory.mktemp("few") / "photos", 8)


@pytest.fixture(scope="module")
def example():
    """The program as a module, so that torch need not be imported for each run of it."""
    path, spec = list(sys.path), importlib.util.spec_from_file_location("resnet_example", PROGRAM)
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = path
    del sys.modules[spec.name]


def losses(example, photos, *flags):
    options = example.arguments([str(word) for word in ("--data", photos, *SMALL, *flags)])
    with Engine(options) as engine:
        return example.train(engine, options)["losses"]


def test_it_trains_and_writes(photos, tmp_path):
    """Five steps are an epoch of the 80 photographs here."""
    flags = ("--data", photos, *SMALL, "--steps", 12, "--accumulate", 2, "--clip-norm", 5, "--precision", "bf16")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PROGRAM.parents[1] / "src")}
    line = [sys.executable, PROGRAM, *flags, "--json", tmp_path / "one.json"]
    ran = subprocess.run([*map(str, line)], capture_output=True, text=True, env=environment, timeout=200)
    assert ran.returncode == 0, ran.stderr
    result = json.loads((tmp_path / "one.json").read_text())
    assert (result["layout"], result["precision"], len(result["losses"])) == ("dp=1", "bf16", 12)
    assert result["images_per_s"] > 0
    assert all(norm > 0 for norm in result["norms"])
    assert sum(result["losses"][-3:]) < sum(result["losses"][:3]) - 0.5


def test_it_goes_on_in_the_middle_of_an_epoch(example, photos, tmp_path):
    whole = losses(example, photos, "--steps", 7)
    begun = losses(example, photos, "--steps", 3, "--save", tmp_path / "state")
    rest = losses(example, photos, "--steps", 4, "--load", tmp_path / "state")
    assert [*begun, *rest] == whole
