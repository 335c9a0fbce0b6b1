"""What if the watcher itself fails? A fault planted in each of its functions may cost one warning line, nothing else."""

from __future__ import annotations

import json

import pytest
from tests.e2e.conftest import PROGRAMS, Result, watched

# Run by both processes of pytest, half each.
HALVES = ("first", "second")


@pytest.fixture(scope="session", params=HALVES)
def planted(request, once) -> list[dict]:
    """What each process with a fault printed, the first without one."""

    def run(folder) -> Result:
        return watched([PROGRAMS / "faults.py", folder, request.param], folder)

    result = once(f"faults-{request.param}", run)
    assert result.code == 0, result.err[-2000:]
    return [json.loads(line) for line in result.out.splitlines()]


@pytest.mark.timeout(600)
def test_the_program_never_notices(planted):
    right, *faulty = planted
    assert (right["planted"], right["code"], right["err"]) == (None, 7, "")
    assert right["out"].count("\n") == 20
    assert len(faulty) > 30
    assert {each["planted"]: each for each in faulty if (each["out"], each["code"]) != (right["out"], 7)} == {}


@pytest.mark.timeout(600)
def test_a_fault_is_one_line(planted):
    told = {each["planted"]: each["err"].splitlines() for each in planted}
    wrong = {place: lines for place, lines in told.items() if len(lines) > 1 or not all(map(is_warning, lines))}
    assert wrong == {}
    assert sum(map(len, told.values())) > len(told) / 2  # most are met on the way, and say so


def is_warning(line: str) -> bool:
    return line.startswith("paceline: watching stopped (") and line.endswith("; the program goes on")


FAILS_EARLY = """
import paceline.inprocess.recorder.loaders.{module} as probe
def fails(*args): raise RuntimeError("planted")
probe.{name} = fails
import runpy, sys
sys.argv = ["endless.py", "--steps", "120", "--then", "exit"]
runpy.run_path({program!r}, run_name="__main__")
"""


def test_a_fault_while_torch_is_imported(script, tmp_path):
    program = script(FAILS_EARLY.format(module="iteration", name="patch", program=str(PROGRAMS / "endless.py")))
    result = watched([program], tmp_path)
    assert result.code == 3
    assert result.theirs == []
    assert [line for line in result.ours if is_warning(line)] == [
        "paceline: watching stopped (import of torch: RuntimeError: planted); the program goes on"
    ]
    assert result.out.startswith("going")
    assert "no-steps" in result.err


ALARMED = """
import signal, torch
from torch import nn
from paceline.inprocess.recorder.probe_state import gate

class TooLong(Exception): ...

def handler(number, frame):
    raise TooLong
signal.signal(signal.SIGALRM, handler)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
data = torch.utils.data.TensorDataset(torch.ones(8, 4))

def train():
    for rows, in torch.utils.data.DataLoader(data, batch_size=4):
        model(rows).sum().backward()
        optimizer.step()

train()
noted, moments, caught = gate.put, [], []
def put(moment):
    moments.append(moment)
    if len(moments) == at:
        signal.raise_signal(signal.SIGALRM)
    noted(moment)
gate.put, at = put, 0
train()
for at in range(1, len(moments) + 1):
    moments.clear()
    try:
        train()
    except TooLong:
        caught.append(at)
    torch.set_grad_enabled(True)  # a signal inside `no_grad` leaves them off, watched or not
print(at > 10, caught == list(range(1, at + 1)))
"""


def test_what_a_signal_handler_raises_inside_the_watcher_reaches_the_program(script, tmp_path):
    """As from a program that ends what takes too long, or from a DataLoader whose worker has died."""
    result = watched([script(ALARMED)], tmp_path, ["--no-profile"])
    assert (result.code, result.out) == (0, "True True\n"), result.err
    assert "watching stopped" not in result.err
