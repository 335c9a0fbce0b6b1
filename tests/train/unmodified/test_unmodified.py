"""`paceline run --layout`: a script for one process on two ranks prints what one process prints."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SRC = HERE.parents[2] / "src"
NEAR = 1e-5


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", "PACELINE_HISTORY": "off"}


def paceline(folder: Path, *arguments: str | Path, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "paceline", "run", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=timeout_s, env=environment(), cwd=folder)


@pytest.fixture(scope="module")
def loops(tmp_path_factory):
    """The same loops on one process, and on two ranks in both ways; each launch once."""
    folder = tmp_path_factory.mktemp("loops")
    whole = [sys.executable, HERE / "loops.py", "one.pt", "whole"]
    one = subprocess.run(whole, capture_output=True, text=True, timeout=120, env=environment(), cwd=folder)
    assert one.returncode == 0, one.stderr
    found = {"one": one}
    for layout, more in (("dp=2", ["--json", "dp.json", "--no-profile"]), ("shard=2", ["-q"])):
        which = ["whole"] if layout == "dp=2" else []
        program = [HERE / "loops.py", f"{layout[:2]}.pt", *which]
        found[layout] = paceline(folder, *more, "--layout", layout, *program)
        assert found[layout].returncode == 0, found[layout].stderr
    return folder, found


def lines(done: subprocess.CompletedProcess[str]) -> dict[str, list[list[float]]]:
    """What a program printed: for each name the numbers of its lines."""
    found: dict[str, list[list[float]]] = {}
    for line in done.stdout.splitlines():
        name, numbers = re.fullmatch(r"(\D*?)((?: -?\d+\.\d+)*)", line.split(" [")[0]).groups()
        found.setdefault(name, []).append([float(number) for number in numbers.split()])
    return found


@pytest.mark.parametrize("layout", ["dp=2", "shard=2"])
@pytest.mark.parametrize(
    "name", ["plain", "accuracy", "gone on", "language", "unused", "routed", "thawed", "groups seen", "kept"]
)
def test_losses_norms_and_evaluation_are_those_of_one_process(loops, layout, name):
    _, found = loops
    one, spread = lines(found["one"])[name], lines(found[layout])[name]
    assert len(one) == len(spread)  # each line once
    for expected, printed in zip(one, spread):
        assert printed == pytest.approx(expected, rel=NEAR, abs=NEAR)


@pytest.mark.parametrize("name", ["batch norm", "batch norm, evaluated", "adversaries", "grown"])
def test_dp_takes_updates_by_hand_batch_norm_and_several_models(loops, name):
    _, found = loops
    for expected, printed in zip(lines(found["one"])[name], lines(found["dp=2"])[name], strict=True):
        assert printed == pytest.approx(expected, rel=NEAR, abs=NEAR)


@pytest.mark.parametrize("layout", ["dp=2", "shard=2"])
def test_half_precision_with_a_scaled_loss_comes_close(loops, layout):
    _, found = loops
    for expected, printed in zip(lines(found["one"])["scaled"], lines(found[layout])["scaled"], strict=True):
        assert printed == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("layout", ["dp=2", "shard=2"])
def test_order_is_that_of_one_process_and_no_rows_share_random_numbers(loops, layout):
    _, found = loops
    seeded = [done.stdout.splitlines()[-1] for done in (found["one"], found[layout])]
    assert seeded[0] == seeded[1] and seeded[0].startswith("order [[")
    assert {alike for alike, _ in lines(found[layout])["rows alike"]} == {0.0}


@pytest.mark.parametrize("name", ["dp.pt", "sh.pt"])
def test_the_checkpoint_is_that_of_one_process(loops, name):
    import torch

    folder, _ = loops
    one, spread = torch.load(folder / "one.pt"), torch.load(folder / name)
    assert list(one["model"]) == list(spread["model"])
    for key, expected in one["model"].items():
        assert type(spread["model"][key]) is torch.Tensor
        torch.testing.assert_close(spread["model"][key], expected, rtol=NEAR, atol=NEAR)
    assert one["optimizer"]["param_groups"] == spread["optimizer"]["param_groups"]
    for place, state in one["optimizer"]["state"].items():
        for key, expected in state.items():
            torch.testing.assert_close(spread["optimizer"]["state"][place][key], expected, rtol=NEAR, atol=NEAR)


LOADED = """
import torch
from torch.optim import Optimizer

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()

moved = []
move = Optimizer._process_value_according_to_param_policy

def seen(weight, value, *given, **named):
    if value.dim():
        moved.append(value.to_local().numel() if hasattr(value, "to_local") else value.numel())
    return move(weight, value, *given, **named)

train(3)
torch.save(optimizer.state_dict(), "state.pt")
state = torch.load("state.pt")["state"]
train(2)
Optimizer._process_value_according_to_param_policy = staticmethod(seen)
optimizer.load_state_dict(torch.load("state.pt"))
train(2)
print("moved", sum(moved), "saved", sum(value.numel() for each in state.values() for value in each.values()))
print(*(round(value.double().sum().item(), 5) for value in model.state_dict().values()))
"""


def test_a_loaded_optimizer_is_split_before_torch_moves_it_to_the_device(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(LOADED)
    one = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    split = paceline(tmp_path, "-q", "--layout", "shard=2", program)
    assert split.returncode == 0, split.stderr
    whole, weights = one.stdout.splitlines()
    half, same = split.stdout.splitlines()
    assert same == weights
    assert whole == "moved 148 saved 152" and half == "moved 74 saved 152"


TIED = """
import torch
from torch import nn

torch.manual_seed(0)


class Stack(nn.Module):
    def __init__(self, shared):
        super().__init__()
        self.embedding, self.layers = shared, nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = hidden + layer(hidden).tanh()
        return hidden


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Embedding(20, 8)
        self.encoder, self.decoder = Stack(self.shared), Stack(self.shared)

    def forward(self, tokens):
        return (self.encoder(tokens) * self.decoder(tokens)) @ self.shared.weight.T


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for _ in range(4):
    tokens = torch.randint(0, 20, (8, 5))
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 5), round(sum(p.abs().sum().item() for p in model.parameters()), 3))
"""


def test_blocks_that_share_a_weight_are_gathered_together(tmp_path):
    """An encoder and a decoder with one embedding, as in T5."""
    program = tmp_path / "program.py"
    program.write_text(TIED)
    one = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60, env=environment())
    found = paceline(tmp_path, "-q", "--layout", "shard=2", program)
    assert found.returncode == 0, found.stderr
    numbers = [[float(each) for each in done.stdout.split()] for done in (one, found)]
    assert len(numbers[0]) == 8
    assert numbers[1] == pytest.approx(numbers[0], rel=NEAR)


def test_the_watch_sees_both_ranks(loops):
    folder, found = loops
    record = json.loads((folder / "dp.json").read_text())
    assert [rank["rank"] for rank in record["by_rank"]] == [0, 1]
    assert "communication" in found["dp=2"].stderr


REFUSED = {
    "stream": "whose samples have no numbers",
    "own_numbers": "its own random generator",
    "distributed_sampler": "already trains in several processes",
    "own_group": "starts a process group itself",
    "no_tensor": "without a tensor",
    "one_row": "the first tensor that Linear gets has 1 row, which 2 ranks cannot share",
    "across_rows": "differs from the same part",
    "trimming": "is 32x5x2 for the whole batch and 16x3x2 for a part of it",
    "keeps_gradients": "its backward pass stores kept['plot'], which has one row",
    "distribution": "its output 0 is a Categorical, which ranks cannot put together",
    "record_of_tensors": "its output 0 is a Record, which ranks cannot put together; let it return tensors",
    "rows_second": "The first dimension of its inputs",
    **dict.fromkeys(["prints_of_its_rows", "logs_of_its_rows"], "it prints '32 rows"),
    **dict.fromkeys(["writes_of_its_rows"], "writes to rows.txt"),
    **dict.fromkeys(["writes_rows_of_a_table"], "writes to a CSV file"),
    **dict.fromkeys(["opens_a_file_for_its_rows"], "last.txt"),
    "own_seed": "something is drawn that is not seeded",
    "counting": "Counting.mean for a part of the batch differs",
    "sparse": "leave sparse=True out",
    "step_in_backward": "step after backward()",
    "hook_on_weight": "clip_grad_value_",
    "computed_weights": "computed weights",
}
REFUSED_OF_SHARD = {
    "fused_sgd": "SGD with fused=True does not update split weights",
    **dict.fromkeys(["weight_replaced", "weight_replaced_before_evaluation"], "replaced by another weight"),
    **dict.fromkeys(["turned_in_place", "widened_in_place"], "is changed in place"),
    "by_hand": "no optimizer has the weights",
    "lbfgs": "LBFGS",
    "slope": "loss.backward()",
    "hook_on_weight": "clip_grad_value_",
}


@pytest.mark.parametrize(("layout", "cases"), [("dp=2", REFUSED), ("shard=2", REFUSED_OF_SHARD)])
def test_what_cannot_be_split_safely_is_refused_with_the_reason(tmp_path, layout, cases):
    done = paceline(tmp_path, "-q", "--layout", layout, HERE / "refused.py", *cases, "end")
    assert done.returncode == 2
    assert done.stdout.splitlines() == [f"{name} 2" for name in cases]
    said = dict(line.split(": ", 1) for line in done.stderr.splitlines() if line)
    for name, why in cases.items():
        assert f"--layout {layout}: " in said[name] and why in said[name], said[name]
    assert "reads batches in its own thread" in said["end"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--layout", "tp=2", "train.py"], "give dp=2, shard=2"),
        (["--layout", "dp=2", "--", "torchrun", "train.py"], "leave out --layout"),
        (["--layout", "dp=1", "train.py"], "one process"),
        (["--layout", "rows=2", "train.py"], "no axis 'rows'; the axes are dp and shard"),
        (["--recipe", "recipe.toml", "train.py"], "memory.micro_batches"),
    ],
)
def test_layouts_that_no_script_can_be_given_start_nothing(tmp_path, arguments, why):
    (tmp_path / "train.py").write_text("raise SystemExit(5)")
    (tmp_path / "recipe.toml").write_text('layout = "dp=2"\n[memory]\nmicro_batches = 2\n')
    done = paceline(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr
    assert not (tmp_path / ".paceline").exists()


@pytest.mark.parametrize(
    ("how", "code", "says"),
    [
        ("raise", 1, "ValueError: rank 1 alone is wrong"),
        ("kill", 128 + signal.SIGKILL, "rank 1 was killed by SIGKILL; all ranks end"),
    ],
)
def test_when_one_rank_ends_all_end_with_one_error(tmp_path, how, code, says):
    (tmp_path / "recipe.toml").write_text('layout = "dp=2"\n')
    done = paceline(tmp_path, "-q", "--recipe", "recipe.toml", HERE / "ends.py", how)
    assert (done.returncode, done.stdout) == (code, "training\n"), done.stderr
    assert says in done.stderr
    assert done.stderr.count("Traceback") == (how == "raise")
    assert done.stderr.count("all ranks end") == 1


ONE_GPU = """
import json, os
import torch

torch.cuda.is_available = lambda: json.loads(os.environ["PACELINE_RANK"])["rank"] == 0
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (rows,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(16, 4)), 8):
    model(rows).mean().backward()
    optimizer.step()
"""


def test_a_rank_without_a_gpu_beside_one_that_has_it_is_named(tmp_path):
    """They would wait for each other for ever: one waits over NCCL, the other over Gloo."""
    (tmp_path / "train.py").write_text(ONE_GPU)
    done = paceline(tmp_path, "-q", "--layout", "dp=2", "train.py", timeout_s=60)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "--layout dp=2: rank 1 on " in done.stderr
    assert "no GPU is visible, but 1 of 2 ranks have one" in done.stderr


def test_ctrl_c_leaves_no_process(tmp_path):
    line = [sys.executable, "-m", "paceline", "run", "-q", "--layout", "dp=2", HERE / "ends.py", "never"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    process = subprocess.Popen(line, env=environment(), cwd=tmp_path, **streams)
    assert process.stdout.readline() == "training\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert said.count("KeyboardInterrupt") == 1
    deadline = time.monotonic() + 10
    while left := of_session(process.pid):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def of_session(session: int) -> list[int]:
    """Processes of a session that are still there."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            found.append(int(folder.name))
    return found
