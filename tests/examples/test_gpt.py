"""Does the example train, write what it was asked for, and go on from its checkpoint?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def gpt(*flags: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(ROOT / "examples" / "gpt.py"), *map(str, flags)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(line, capture_output=True, text=True, env=environment, timeout=200)


def test_it_trains_and_goes_on(tmp_path):
    flags = ("--steps", 12, "--accumulate", 2, "--checkpoint-activations", "full", "--precision", "bf16")
    ran = gpt(*flags, "--json", tmp_path / "one.json", "--save", tmp_path / "state")
    assert ran.returncode == 0, ran.stderr
    result = json.loads((tmp_path / "one.json").read_text())
    assert (result["layout"], result["precision"], len(result["losses"])) == ("dp=1", "bf16", 12)
    assert result["tokens_per_s"] > 0
    assert result["losses"][0] > 5.5
    assert result["losses"][-1] < 4.8
    again = gpt("--steps", 2, "--json", tmp_path / "two.json", "--load", tmp_path / "state")
    assert again.returncode == 0, again.stderr
    assert json.loads((tmp_path / "two.json").read_text())["losses"][0] < 4.8


def test_a_layout_of_several_ranks_says_how_to_start_them():
    ran = gpt("--layout", "dp=2,tp=2")
    assert ran.returncode != 0
    assert "takes 4 ranks (dp 2 x tp 2), and there are 1; start it with `torchrun --nproc-per-node 4" in ran.stderr
