"""Do Hugging Face's Trainer and Lightning train the same on two ranks, from a script for one process?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.train.unmodified.test_unmodified import HERE, NEAR, environment, paceline

STEPS = {"hf_trains.py": 6, "lightning_fits.py": 12, "contrastive_fits.py": 20}


def of_one_process(program: str, folder: Path) -> dict[str, list[float]]:
    line = [sys.executable, HERE / program, "saved"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, env=environment(), cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("program", STEPS)
def test_its_own_ranks_train_as_one_process(program, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    expected = of_one_process(program, one)
    done = paceline(two, "-q", "--no-profile", "--layout", "dp=2", HERE / program, "saved", timeout_s=300)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith('{"')]  # from the first rank alone
    found = json.loads(line)
    assert len(found["loss"]) == STEPS[program]
    for name, numbers in expected.items():
        assert found[name] == pytest.approx(numbers, rel=NEAR, abs=NEAR), name
    assert saved(two) == saved(one) != []


def saved(folder: Path) -> list[str]:
    """The files of a run that every number of ranks makes."""
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return sorted(name for name in names if not name.startswith((".paceline", "runs")) and "rng_state" not in name)


@pytest.mark.parametrize("use", ["length", "given"])
def test_a_cache_is_not_combined_in_training_and_a_program_that_reads_it_is_refused(tmp_path, use):
    line = [sys.executable, HERE / "cached.py"]
    alone = subprocess.run(line, capture_output=True, text=True, timeout=300, env=environment(), cwd=tmp_path)
    done = paceline(tmp_path, "-q", "--no-profile", "--layout", "dp=2", HERE / "cached.py", use, timeout_s=300)
    assert done.stdout == alone.stdout and done.stdout.count("\n") == 5
    assert done.returncode == 2 and "reads the DynamicCache that GPT2LMHeadModel returned in training" in done.stderr
