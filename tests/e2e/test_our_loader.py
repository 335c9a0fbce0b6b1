"""`paceline run` of a program that reads shards with our own loader: its waits are waits for data."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.data.making import converted

PROGRAM = """
import sys
import torch
from paceline.data.reading.crops import RandomResizedCrop
from paceline.data.loader.loader import Loader

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
loader = Loader(sys.argv[1], 4, True, RandomResizedCrop(64), seed=1, threads=int(sys.argv[2]))
for epoch in range(4):
    for images, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(images.float() / 255), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
"""


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    return converted(tmp_path_factory.mktemp("data"), 60, restart_marker_rows=1).folder


@pytest.mark.parametrize("threads", [0, 2])
def test_it_is_watched_as_a_loader_and_changes_nothing(tmp_path, shards, threads):
    (tmp_path / "train.py").write_text(PROGRAM)
    arguments = ["train.py", str(shards), str(threads)]
    bare = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True)
    watched = subprocess.run(
        [sys.executable, "-m", "paceline", "run", "--json", "run.json", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (bare.returncode, watched.returncode) == (0, 0), watched.stderr
    assert watched.stdout == bare.stdout
    assert "paceline: disabled" not in watched.stderr
    found = json.loads((tmp_path / "run.json").read_text())
    # Without threads training waits for every batch to be made; with them for as little as the machine allows.
    assert found["phases"]["data_wait"]["share"] > (0.0 if threads else 0.05)
    (summary,) = (tmp_path / ".paceline" / "runs").rglob("summary.json")
    (loader,) = json.loads(summary.read_text())["loaders"]
    assert (loader["class"], loader["dataset"], loader["batch_size"]) == ("Loader", "ShardedDataset", 4)
    assert loader.get("threads", 0) == threads
    assert (loader["epochs"], loader["train_fetches"]) == (4, 60)  # 15 batches of 4
    meter = loader["meter"]
    assert (meter["batches"], meter["samples"]) == (60, 240)
    assert 0 < meter["cpu_s"] <= 1.2 * meter["produce_s"]
    assert {"read", "lookup", "decode", "transform"} <= set(loader["stages"])
    assert loader["stages"]["decode"]["samples"] >= 28  # one batch in eight
    codes = {finding["code"] for finding in found["findings"]}
    assert ("DATA001" in codes) <= (threads == 0)  # threads make batches behind the training
    for finding in found["findings"]:
        if finding["code"] == "DATA001":
            assert any("measured by the loader: " in one["text"] for one in finding["evidence"])
