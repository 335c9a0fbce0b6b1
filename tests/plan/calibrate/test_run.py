"""One calibration of little effort, on this machine, and predictions from it: the whole chain."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.plan.profiles import profile

from paceline.cli import main
from paceline.plan.calibrate.profile import read_profile, write_profile

pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]
SMALL = """
import torch
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(100):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
"""


def plan(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["plan", *args])
    return ended.value.code


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibrated")
    line = [sys.executable, "-m", "paceline", "plan", "--calibrate", "--quick", "--out", str(folder / "profile.json")]
    done = subprocess.run(line, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=250)
    assert done.returncode == 0, done.stderr
    return folder / "profile.json", done


def test_a_machine_is_measured(measured):
    path, done = measured
    found = read_profile(path)
    families = {point.family.split(".")[0] for point in found.places[0].points}
    assert {"product", "convolution", "attention", "each"} <= families
    assert all(0 < point.time.low <= point.time.seconds <= point.time.high for point in found.places[0].points)
    assert [each.kind for each in found.places[0].blocks] == ["transformer", "convolution"]
    assert all(each.peak_bytes > each.held_bytes + each.live_bytes / 2 for each in found.places[0].blocks)
    assert "GFLOP/s" in done.stdout
    assert f"wrote {path}" in done.stderr


def test_a_program_is_predicted_from_it(measured, tmp_path, capsys):
    record = tmp_path / "here.json"
    program = str(ROOT / "examples" / "gpt.py")
    assert plan("--profile", str(measured[0]), "--here", "--json", str(record), program, "--width", "128") == 0
    out = capsys.readouterr().out
    assert "matrix products" in out
    written = json.loads(record.read_text(encoding="utf-8"))
    assert written["schema"] == "paceline.plan-here/1"
    assert written["step_s"] == pytest.approx(sum(written["step_parts_s"].values()))
    assert {"matrix", "attention", "optimizer", "data"} <= set(written["step_parts_s"])
    assert 200e6 < written["memory_bytes"] < 1e9
    assert written["pace"] == pytest.approx(written["reference_now_s"] / written["reference_s"])
    assert [line for line in written["told"] if "faster now" not in line and "slower now" not in line] == []
    assert "as a measure of the machine's speed now" in out


def test_of_another_machine_the_speed_of_now_says_nothing(measured, tmp_path, capsys):
    own = read_profile(measured[0])
    write_profile(replace(own, made=replace(own.made, host="elsewhere")), tmp_path / "profile.json")
    record, program = tmp_path / "here.json", tmp_path / "train.py"
    program.write_text(SMALL, encoding="utf-8")
    assert plan("here", "--profile", str(tmp_path / "profile.json"), "--json", str(record), str(program)) == 0
    written = json.loads(record.read_text(encoding="utf-8"))
    assert (written["reference_now_s"], written["pace"]) == (None, 1.0)
    assert "as a measure of the machine's speed at calibration" in capsys.readouterr().out


def test_a_program_that_trains_nothing_is_said(tmp_path, capsys):
    write_profile(profile(), tmp_path / "profile.json")
    (tmp_path / "train.py").write_text("raise RuntimeError('no data')", encoding="utf-8")
    assert plan("here", "--profile", str(tmp_path / "profile.json"), str(tmp_path / "train.py")) == 2
    assert "RuntimeError: no data" in capsys.readouterr().err


def test_without_a_profile_the_way_to_one_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert plan("--here", str(ROOT / "examples" / "gpt.py")) == 2
    assert "no machine profile at" in capsys.readouterr().err


def test_an_interruption_leaves_nothing_behind(tmp_path):
    out, scratch = tmp_path / "profile.json", tmp_path / "scratch"
    scratch.mkdir()
    line = [sys.executable, "-m", "paceline", "plan", "calibrate", "--quick", "--out", str(out)]
    process = subprocess.Popen(
        line, env={**os.environ, "TMPDIR": str(scratch)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 30
    while not list(scratch.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert list(scratch.iterdir()) == []
    assert not out.exists()


def test_without_torch_it_is_said(tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")", encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    line = [sys.executable, "-m", "paceline", "plan", "calibrate", "--out", str(tmp_path / "profile.json")]
    done = subprocess.run(line, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, timeout=60)
    assert done.returncode == 2
    assert "calibration needs torch" in done.stderr
