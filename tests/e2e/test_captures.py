"""`paceline run --profile`: chosen steps of an unmodified program are captured on every rank, and analysed at its end."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pytest
from tests.e2e.conftest import Result, bare, watched
from tests.e2e.test_same import free_port

from paceline.record import layout

TRAINS = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset

def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(64, 8), torch.randint(3, (64,)))
    step = 0
    while step < int(sys.argv[1]):
        for x, y in DataLoader(data, 8, shuffle=True, num_workers=int(sys.argv[2])):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(step, loss.item())
            step += 1
            if step == int(sys.argv[1]):
                break

if __name__ == "__main__":
    main()
"""
TWO_OPTIMIZERS = """
import torch
torch.set_num_threads(1)
one, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (one, other)]
for step in range(8):
    for model, optimizer in zip((one, other), optimizers):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
"""
PROFILES_ITSELF = """
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
    for step in range(8):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
print(len(profiler.events()) > 50)
"""
PROFILES_BY_SCHEDULE = """
import sys, torch
from torch.profiler import ProfilerActivity, profile, schedule
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
cycles = []
wait, warmup, active = map(int, sys.argv[1:])
plan = schedule(wait=wait, warmup=warmup, active=active)
with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=cycles.append) as profiler:
    for step in range(24):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        profiler.step()
print(len(cycles))
"""
RANKS = """
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
time.sleep(0.2)  # a thread of Gloo that lets go of the last exchange after the interpreter's end aborts it: torch 2.13
"""


def program(folder: Path, text: str) -> Path:
    path = folder / "train.py"
    path.write_text(textwrap.dedent(text))
    return path


def captures(result: Result) -> list[Path]:
    return sorted((result.folder / layout.CAPTURES_DIR).iterdir())


def steps_of(capture: Path) -> list[str]:
    events = json.loads(capture.read_text())["traceEvents"]
    return [event["name"] for event in events if event["name"].startswith("ProfilerStep#") and event["ph"] == "X"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[Result, Result]:
    """Bare and with steps 6 to 9 captured: the third epoch's workers are forked while the profiler is on."""
    folder = tmp_path_factory.mktemp("pair")
    file = program(folder, TRAINS)
    return bare([file, "20", "2"], folder), watched([file, "20", "2"], folder, ["--profile", "6:9"])


def test_the_program_does_not_notice(pair):
    without, with_us = pair
    assert (with_us.code, with_us.out) == (without.code, without.out)
    assert with_us.theirs == without.theirs == []


def test_the_capture_holds_the_steps_that_were_asked_for(pair):
    (capture,) = captures(pair[1])
    assert steps_of(capture) == [f"ProfilerStep#{step}" for step in (6, 7, 8, 9)]
    names = [event["name"] for event in json.loads(capture.read_text())["traceEvents"]]
    assert names.count("Optimizer.step#SGD.step") == 4


def test_the_profiler_warms_up_for_one_step_and_leaves_no_variable(tmp_path):
    listening = """
        import os, torch
        from torch.autograd.profiler import KinetoStepTracker
        torch.set_num_threads(1)
        start = torch.profiler.profile.start
        def told(profiler):
            start(profiler)
            print("start", step, profiler.current_action.name, profiler.schedule(5).name)
        torch.profiler.profile.start = told
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(8):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            print(step, os.environ.get("KINETO_LOG_LEVEL"))
    """
    result = watched([program(tmp_path, listening)], tmp_path, ["--profile", "5:6"])
    lines = [f"{step} None" for step in range(8)]
    assert result.out.splitlines() == [*lines[:3], "start 3 WARMUP RECORD", *lines[3:]]
    assert result.theirs == []
    assert steps_of(captures(result)[0]) == ["ProfilerStep#5", "ProfilerStep#6"]


def test_a_program_that_ends_while_the_profiler_warms_up(tmp_path):
    result = watched([program(tmp_path, TRAINS), "5", "0"], tmp_path, ["--profile", "6:9"])
    assert (result.code, result.theirs) == (0, [])
    assert not (result.folder / layout.CAPTURES_DIR).exists()


def test_steps_that_were_captured_are_marked_in_the_record(pair):
    (rank,) = pair[1].run.ranks
    marked = [step for step, row in enumerate(rank.steps) if row["flags"] & layout.FLAG_PROFILED]
    assert set(range(6, 10)) <= set(marked) <= set(range(5, 11))
    assert [note["steps"] for note in rank.noted("capture")] == [4]


def test_it_is_analysed_at_the_end(pair):
    result = pair[1]
    assert (result.folder / "trace.html").exists()
    assert "verdict: n/a, the captures contain no GPU events" in result.err
    assert re.search(r"wrote captures to \S+ and their report to \S+trace.html", result.err)


def test_the_first_step_is_captured_too(tmp_path):
    result = watched([program(tmp_path, TRAINS), "5", "0"], tmp_path, ["--profile", "0:1", "-q"])
    assert result.code == 0
    assert result.err == ""
    (capture,) = captures(result)
    assert steps_of(capture) == ["ProfilerStep#0", "ProfilerStep#1"]


def test_a_program_that_ends_within_them(tmp_path):
    result = watched([program(tmp_path, TRAINS), "8", "0"], tmp_path, ["--profile", "6:20"])
    (capture,) = captures(result)
    assert steps_of(capture)[:2] == ["ProfilerStep#6", "ProfilerStep#7"]


def test_a_program_that_ends_before_them(tmp_path):
    result = watched([program(tmp_path, TRAINS), "5", "0"], tmp_path, ["--profile", "10:13"])
    assert result.code == 0
    assert "steps 10:13 were not captured: the program ended before the first step to capture" in result.err


def test_a_step_of_two_optimizers_is_one(tmp_path):
    result = watched([program(tmp_path, TWO_OPTIMIZERS)], tmp_path, ["--profile", "2:4"])
    (capture,) = captures(result)
    assert steps_of(capture) == ["ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"]


def test_the_programs_own_profiler_comes_first(tmp_path):
    result = watched([program(tmp_path, PROFILES_ITSELF)], tmp_path, ["--profile", "2:4"])
    assert (result.code, result.out) == (0, "True\n")
    assert "were not captured: the program profiles itself" in result.err


@pytest.mark.parametrize("steps", ["3:4", "4:6", "5:8", "12:14"])
@pytest.mark.parametrize("plan", [("2", "2", "3"), ("1", "1", "1"), ("0", "4", "2")], ids="-".join)
def test_beside_a_schedule_of_the_program_nothing_crashes(tmp_path, steps, plan):
    """Two profilers, of which one is only prepared, would end the process."""
    file = program(tmp_path, PROFILES_BY_SCHEDULE)
    result = watched([file, *plan], tmp_path, ["--profile", steps])
    assert (result.code, result.out) == (0, bare([file, *plan], tmp_path).out)


def test_every_rank_is_captured(tmp_path):
    file = program(tmp_path, RANKS)
    launcher = ["--", "torchrun", "--nproc-per-node", "2", "--master-port", str(free_port()), str(file)]
    result = watched(launcher, tmp_path, ["--profile", "4:6"])
    assert result.code == 0
    found = captures(result)
    assert [path.name.partition("-")[0] for path in found] == ["rank0", "rank1"]
    assert [steps_of(path) for path in found] == [[f"ProfilerStep#{step}" for step in (4, 5, 6)]] * 2
    told = [json.loads(path.read_text())["distributedInfo"]["rank"] for path in found]
    assert told == [0, 1]
    assert re.search(r"waiting: ranks wait .* for each other in \d+ collective operations", result.err)
    assert "of CPU time in operators" in result.err


@pytest.mark.parametrize("given", ["10", "13:10", "a:b", "1:2:3", "-1:3"])
def test_what_names_no_steps(tmp_path, given):
    result = watched([program(tmp_path, TRAINS), "1", "0"], tmp_path, [f"--profile={given}"])
    assert (result.code, result.out) == (2, "")
    assert "is not a range of steps" in result.err
