"""Files that a program has not closed are written, and its objects are deleted, as in one process."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest
from tests.train.unmodified.test_unmodified import HERE, environment, paceline

PROGRAM = HERE / "unclosed.py"
FILES = ("text.txt", "binary", "both", "added.txt", "packed.gz", "table.csv", "metrics.jsonl", "log.txt")
CODES = {"exit": 3, "raise": 1, "rank 1": 1, "refuse": 2, "refuse in a thread": 2, "refuse at the end": 2}


def written(folder: Path) -> dict[str, str]:
    return {name: (gzip.open if name.endswith("gz") else open)(folder / name, "rt").read() for name in FILES}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The files of one process."""
    folder = tmp_path_factory.mktemp("alone")
    subprocess.run([sys.executable, PROGRAM, "", ""], cwd=folder, env=environment(), timeout=120, check=True)
    files = written(folder)
    assert {text.count("\n") for name, text in files.items() if name != "metrics.jsonl"} == {4}
    assert files["metrics.jsonl"].endswith("deleted\n")
    return files


@pytest.mark.parametrize(
    ("layout", "end", "sets"),
    [
        ("", "", "sets"),
        ("dp=2", "", ""),
        ("dp=2", "", "sets"),
        ("shard=2", "", "sets"),
        *(("dp=2", end, "sets") for end in CODES if end != "rank 1"),
    ],
)
def test_files_that_are_not_closed_have_the_content_of_one_process(alone, tmp_path, layout, end, sets):
    chosen = ["--layout", layout] if layout else []
    done = paceline(tmp_path, "-q", "--no-profile", *chosen, PROGRAM, end, sets, timeout_s=300)
    assert done.returncode == CODES.get(end, 0), done.stderr
    assert "Exception ignored" not in done.stderr
    expected = {**alone}
    if end == "refuse in a thread":  # the process ends at once
        expected["metrics.jsonl"] = expected["metrics.jsonl"].removesuffix("deleted\n")
    assert written(tmp_path) == expected


def test_files_of_rank_0_are_written_if_another_rank_fails(alone, tmp_path):
    done = paceline(tmp_path, "-q", "--no-profile", "--layout", "dp=2", PROGRAM, "rank 1", "", timeout_s=300)
    assert done.returncode == CODES["rank 1"] and "rank 1 alone is wrong" in done.stderr
    for name, text in written(tmp_path).items():
        assert text.splitlines()[:3] == alone[name].splitlines()[:3]
