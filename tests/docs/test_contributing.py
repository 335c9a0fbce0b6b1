"""Does CONTRIBUTING.md name what there is? If a test fails, correct the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "paceline"
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
EXAMPLES = re.compile(r"CODE|AXIS|FORMAT|NAME")  # stand for the name of a new file


def test_the_map_has_every_package() -> None:
    packages = {path.parent.name for path in SRC.glob("*/*.py")}
    listed = re.findall(r"^\| `([a-z]+)` \|", TEXT, re.M)
    assert sorted(listed) == sorted(packages)


def test_the_layers_are_those_of_the_import_rules() -> None:
    rules = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition('name = "layers of the house"')[2]
    lines = re.findall(r'"([^"]+)"', rules.partition("layers = [")[2].partition("]")[0])
    there = {path.name for path in SRC.iterdir()}
    named = [[name for name in re.findall(r"\w+", line) if name in there] for line in lines]
    shown = re.findall(r"^    ([a-z |]+)$", TEXT, re.M)
    assert [line.split(" | ") for line in shown] == [line for line in named if line]


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\bmake ([a-z-]+)", TEXT))))
def test_a_make_target_is_there(target: str) -> None:
    assert target in TARGETS


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:src|tests|docs|benchmarks)/[^`\s]*)`", TEXT))))
def test_a_path_is_there(path: str) -> None:
    assert (ROOT / (Path(path).parent if EXAMPLES.search(path) else path)).exists()


@pytest.mark.parametrize("module", sorted(set(re.findall(r"python -m (paceline[\w.]*)", TEXT))))
def test_a_command_names_a_module(module: str) -> None:
    assert (ROOT / "src" / f"{module.replace('.', '/')}.py").is_file()
