"""Does a watched program notice anything? The same programs run with and without, compared to the last bit."""

from __future__ import annotations

import ast
import json
import shutil
import socket
import sys
from pathlib import Path

import pytest
from tests.e2e.conftest import PROGRAMS, Result, bare, watched

SCENES = [
    node.name
    for node in ast.parse((PROGRAMS / "same.py").read_text()).body
    if isinstance(node, ast.FunctionDef)
    and any(isinstance(d, ast.Name) and d.id == "scene" for d in node.decorator_list)
]


def scenes(result: Result) -> dict[str, dict]:
    return {line["scene"]: line for line in map(json.loads, result.out.splitlines())}


@pytest.fixture(scope="session")
def pair(once) -> tuple[Result, Result]:
    """The program of many scenes, bare and watched, in the same place."""

    def both(folder: Path) -> tuple[Result, Result]:
        program = shutil.copy(PROGRAMS / "same.py", folder)
        return bare([program], folder), watched([program], folder)

    return once("same", both)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SCENES)
def test_a_scene_is_the_same(pair, name):
    without, with_us = (scenes(result)[name] for result in pair)
    assert without["told"][0] != "the scene failed", without["told"][1]
    assert with_us == without


def test_watching_went_on_through_all_scenes(pair):
    without, with_us = pair
    assert with_us.code == without.code == 0
    assert not [line for line in with_us.ours if "watching stopped" in line or "not watching" in line]
    assert sum(len(rank.steps) for rank in with_us.run.ranks) > 300
    assert not [rank.noted("fault") for rank in with_us.run.ranks if rank.noted("fault")]


def test_the_program_printed_no_other_warnings(pair):
    """Told apart by their text: what processes print at the same time comes in any order."""
    without, with_us = (warnings_in(result) for result in pair)
    assert with_us == without


def warnings_in(result: Result) -> set[str]:
    kept = (line for line in result.theirs if "Warning:" in line and "USDT:" not in line)
    return {line.partition("Warning:")[2] for line in kept}


# ------------------------------------------------------------------------------------------- several ranks


def told_by_ranks(folder: Path) -> list[list]:
    return [[json.loads(line) for line in (folder / f"rank{r}").read_text().splitlines()] for r in range(2)]


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def by_torchrun(folder: Path, program: Path) -> list[str]:
    where = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", free_port()]
    return ["-m", "torch.distributed.run", *where, str(program), str(folder)]


# What a thread of torch's says that wants Python when the interpreter ends already; seen with ranks that nobody watched.
_TORCH_ABORTS = "terminate called without an active exception"


def run_ranks(folder: Path, how: str, again: bool = False) -> tuple[Result, list[list]]:
    told = folder / "told"
    told.mkdir(exist_ok=True)
    program = PROGRAMS / "ranks.py"
    if how == "bare":
        result = bare(by_torchrun(told, program), folder)
    elif how == "torchrun":
        result = watched(["--", sys.executable, *by_torchrun(told, program)], folder)
    else:
        result = watched([program, told, free_port()], folder)
    if result.code and _TORCH_ABORTS in result.err and not again:
        return run_ranks(folder, how, again=True)
    assert result.code == 0, result.err
    return result, told_by_ranks(told)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["torchrun", "spawn"])
def test_ranks_are_the_same(once, how):
    _, without = once("ranks-bare", lambda folder: run_ranks(folder, "bare"))
    result, with_us = once(f"ranks-{how}", lambda folder: run_ranks(folder, how))
    assert with_us == without
    assert not [line for line in result.ours if "watching stopped" in line]
    assert [(r.rank, r.world, len(r.steps)) for r in result.run.ranks] == [(0, 2, 50), (1, 2, 50)]
