"""The plumbing of the proof, with checks that are made up: the proof itself needs a GPU, and none has been seen."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
PROOF = BENCHMARKS / "gpu_proof.py"
ABOUT = {"available": True, "device": "NVIDIA Played 1", "torch": "2.13.0", "python": "3.11"}

sys.path.insert(0, str(BENCHMARKS))

import gpu_proof  # noqa: E402


def proof(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROOF), *arguments], capture_output=True, text=True, env={**os.environ, **environment}
    )


@pytest.fixture
def checks(tmp_path):
    folder = tmp_path / "checks"
    folder.mkdir()

    def add(name: str, source: str) -> Path:
        (folder / f"{name}.py").write_text(source)
        return folder

    return add


def answers(folder: Path, out: Path, only: list[str] | None = None) -> tuple[int, dict]:
    code = gpu_proof.prove(ABOUT, folder, out, only)
    (path,) = out.glob("gpu-proof-*.json")
    return code, json.loads(path.read_text())


def test_without_cuda_it_says_so_in_one_line_and_exits_2():
    found = proof(CUDA_VISIBLE_DEVICES="")
    assert found.returncode == 2
    assert found.stdout.count("\n") == 1
    assert "no CUDA device" in found.stdout
    assert found.stderr == ""


def test_without_torch_too(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('No module named torch')")
    found = proof(PYTHONPATH=str(tmp_path))
    assert (found.returncode, found.stdout.count("\n")) == (2, 1)
    assert "No module named torch" in found.stdout


def test_figures_come_into_one_json(checks, tmp_path):
    folder = checks("adds", "def check():\n    return {'figures': {'sum': 1 + 1}, 'failed': [], 'not_done': []}")
    code, result = answers(folder, tmp_path / "out")
    assert code == 0
    assert result["schema"] == "paceline.gpu-proof/1"
    assert (result["device"], result["torch"]) == ("NVIDIA Played 1", "2.13.0")
    assert result["checks"]["adds"]["figures"] == {"sum": 2}
    assert result["failed"] == []
    (path,) = (tmp_path / "out").glob("*.json")
    assert path.name == f"gpu-proof-nvidia-played-1-{result['date']}.json"


def test_what_fails_is_named_and_the_rest_still_runs(checks, tmp_path):
    checks("a", "def check():\n    return {'failed': ['5 is not 4'], 'not_done': ['no ruler']}")
    checks("b", "def check():\n    raise ValueError('upside down')")
    folder = checks("c", "def check():\n    return {'figures': {'here': True}}")
    code, result = answers(folder, tmp_path / "out")
    assert code == 1
    assert result["failed"] == ["a: 5 is not 4", "b: the check itself failed: ValueError: upside down"]
    assert result["not_done"] == ["a: no ruler"]
    assert result["checks"]["c"]["figures"] == {"here": True}


def test_a_check_that_hangs_is_ended_with_all_it_started(checks, tmp_path):
    source = "import subprocess, sys, time\nLIMIT_S = 6\n"
    source += (
        "def check():\n    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n    time.sleep(60)"
    )
    code, result = answers(checks("hangs", source), tmp_path / "out")
    assert code == 1
    assert result["failed"] == ["hangs: it took longer than 6 s and was ended"]


def test_a_check_that_dies(checks, tmp_path):
    code, result = answers(checks("dies", "import os\ndef check():\n    os._exit(3)"), tmp_path / "out")
    assert code == 1
    assert result["failed"] == ["dies: exit code 3: no message"]


def test_only_some(checks, tmp_path):
    checks("a", "def check():\n    return {}")
    code, result = answers(checks("b", "def check():\n    return {}"), tmp_path / "out", ["b"])
    assert list(result["checks"]) == ["b"]


def test_only_some_leave_the_others_of_the_day(checks, tmp_path):
    checks("a", "def check():\n    return {'failed': ['once']}")
    folder = checks("b", "def check():\n    return {'figures': {'here': True}}")
    answers(folder, tmp_path / "out")
    (folder / "a.py").write_text("def check():\n    return {}")
    code, result = answers(folder, tmp_path / "out", ["a"])
    assert (code, result["failed"]) == (0, [])
    assert result["checks"]["b"]["figures"] == {"here": True}


def test_a_check_has_paceline_and_its_own_folder_at_hand(checks, tmp_path):
    checks("_beside", "value = 7")
    source = "from _beside import value\nfrom _watched import finding\nimport paceline.record.layout\n"
    code, result = answers(
        checks("uses", source + "def check():\n    return {'figures': {'v': value}}"), tmp_path / "out"
    )
    assert result["checks"]["uses"]["figures"] == {"v": 7}


def test_no_time_left_is_not_a_failure(checks):
    found = gpu_proof.run_check(checks("a", "def check():\n    return {}") / "a.py", left_s=1.0)
    assert found["not_done"] == ["no time was left"]


def test_the_limits_fit_into_fifteen_minutes_with_room():
    """Not all checks take all they may; but the three longest must not eat the rest."""
    limits = sorted((gpu_proof.limit_of(f) for f in (BENCHMARKS / "gpu_checks").glob("[!_]*.py")), reverse=True)
    assert gpu_proof.WHOLE_S <= 900
    assert sum(limits[:3]) <= gpu_proof.WHOLE_S


@pytest.mark.parametrize("file", sorted((BENCHMARKS / "gpu_checks").glob("*.py")), ids=lambda f: f.stem)
def test_a_check_says_what_it_checks_and_has_a_check(file):
    tree = ast.parse(file.read_text())
    assert ast.get_docstring(tree)
    assert any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body)
