"""Is the record there while the run goes on, small, shared by many processes, and made without a network?"""

from __future__ import annotations

import subprocess
import time

import pytest
from tests.e2e.conftest import PACELINE, PROGRAMS, Going, Result, environment, only_run, watched

TRAIN = PROGRAMS / "endless.py"
MOST_BYTES_PER_STEP = 150


@pytest.fixture(scope="session")
def long_run(once) -> Result:
    """A run of 2,000 steps."""
    return once("long", lambda folder: watched([TRAIN, "--steps", "2000"], folder))


def test_bytes_per_step(long_run):
    (rank,) = long_run.run.ranks
    assert len(rank.steps) == 2000
    size = sum(file.stat().st_size for file in rank.folder.rglob("*") if file.is_file())
    assert size / len(rank.steps) <= MOST_BYTES_PER_STEP


def test_what_is_recorded_of_every_step(long_run):
    (rank,) = long_run.run.ranks
    assert list(rank.steps["index"]) == list(range(2000))
    assert set(rank.steps["samples"]) == {4.0}
    assert all(rank.steps["loss"] == rank.steps["loss"])
    assert set(rank.steps["micro_steps"]) == {1}
    assert all(rank.steps["end_ns"][1:] > rank.steps["end_ns"][:-1])
    assert rank.noted("end")[-1]["exception"] is None


def test_the_record_lists_what_was_patched(long_run):
    """Of a run without a recipe: what steps, loaders and exchanges are seen by, each name once."""
    patched = long_run.diagnosis.patched
    assert {"torch.nn.modules.module.Module.__call__", "torch.utils.data.dataloader.DataLoader.__iter__"} <= set(
        patched
    )
    assert len(set(patched)) == len(patched)
    assert all(name.startswith("torch.") for name in patched)


PATCHES = """
import sys, types, torch
from paceline.inprocess import hooks
from torch.utils.data import DataLoader

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for inputs in DataLoader(torch.randn(40, 4), batch_size=4):
    optimizer.zero_grad()
    model(inputs).sum().backward()
    optimizer.step()
def value_of(name):
    parts = name.split(".")
    module = next(m for at in range(len(parts), 0, -1) if (m := ".".join(parts[:at])) in sys.modules)
    value = sys.modules[module]
    for part in parts[module.count(".") + 1 :]:
        value = getattr(value, part)
    return value

listed = [value_of(name) for name in hooks.installed()]  # some have a second name in torch
ours = sorted(
    f"{module.__name__}.{name}"
    for module in list(sys.modules.values()) if getattr(module, "__name__", "").startswith("torch.")
    for name, value in list(vars(module).items())
    if isinstance(value, types.FunctionType) and "paceline" in value.__code__.co_filename
    and not any(value is one for one in listed)
)
print(len(listed), ours)
"""


@pytest.mark.parametrize("layout", [[], ["--layout", "dp=2"], ["--layout", "shard=2"]], ids=["none", "dp=2", "shard=2"])
def test_nothing_of_torch_is_patched_without_being_listed(script, tmp_path, layout):
    """Looked for from the inside: every function in a module of torch whose code is ours."""
    result = watched([script(PATCHES)], tmp_path, ["--no-profile", *layout])
    assert result.code == 0, result.err
    count, _, unlisted = result.out.strip().partition(" ")
    assert (len(result.diagnosis.patched), unlisted) == (int(count), "[]")
    assert ("torch.distributed.is_initialized" in result.diagnosis.patched) == bool(layout)


def test_it_can_be_read_while_it_is_written(going):
    run = going(TRAIN)
    seen = []
    for count in (200, 600, 1200):
        run.until_steps(count)
        result = Result(0, "", "", only_run(run.cwd))
        assert result.diagnosis.ended == "still running"
        seen.append(len(result.run.ranks[0].steps))
    assert seen == sorted(set(seen))
    assert result.run.problems == ()
    run.process.terminate()
    assert run.end().code == 143


def test_another_profiler_window_on_demand(going):
    run = going(TRAIN)
    run.until_steps(200)
    (first,) = windows_of(run, 1)
    asked = subprocess.run(
        [PACELINE, "profile", "--dir", "runs"], cwd=run.cwd, env=environment(), capture_output=True, text=True
    )
    assert (asked.returncode, asked.stdout) == (0, ""), asked.stderr
    again = windows_of(run, 2)[-1]
    assert again["time_ns"] > first["time_ns"]
    assert {"aten::addmm", "aten::mul_"} & {operator["name"] for operator in again["operators"]}
    run.process.terminate()
    assert run.end().code == 143
    late = subprocess.run([PACELINE, "profile", "--dir", "runs"], cwd=run.cwd, capture_output=True, text=True)
    assert late.returncode == 2
    assert "has ended (ended by SIGTERM" in late.stderr


def windows_of(run: Going, count: int) -> list[dict]:
    """The profiler windows of a run, once there are so many."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        (rank,) = Result(0, "", "", only_run(run.cwd)).run.ranks
        found = rank.noted("window")
        if len(found) >= count:
            return found
        time.sleep(0.1)
    raise AssertionError(f"{count} windows were not taken")


def test_commands_on_several_hosts_join_one_run(tmp_path, going):
    """Played on one host: two commands, one name, one shared folder."""
    runs = [going("--run-id", "joined", TRAIN, "--steps", "2000") for _ in range(2)]  # long enough to overlap
    results = [run.process.wait(timeout=150) for run in runs]
    assert results == [0, 0]
    (folder,) = (tmp_path / "runs").iterdir()
    run = Result(0, "", "", folder).run
    assert (folder.name, len(run.launches), run.problems) == ("joined", 2, ())
    assert [len(rank.steps) for rank in run.ranks] == [2000, 2000]
    assert Result(0, "", "", folder).diagnosis.ended == "finished"


# An audit hook in every Python process, of paceline too: it writes down each attempt to reach another.
LISTENER = """
import os, sys
def hear(event, args):
    if event in ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "urllib.Request"):
        local = getattr(args[0], "family", None) == 1
        with open(os.environ["HEARD"], "a") as file:
            file.write("within this machine\\n" if local else f"{event} {args[1:]!r} {sys.argv}\\n")
sys.addaudithook(hear)
"""


def test_no_network(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(LISTENER)
    log = tmp_path / "heard"
    train = [TRAIN, "--steps", "120", "--workers", "1"]
    result = watched(train, tmp_path, PYTHONPATH=str(tmp_path / "site"), HEARD=str(log))
    assert result.code == 0, result.err
    assert set(log.read_text().splitlines()) == {"within this machine"}  # what loader workers send batches through
