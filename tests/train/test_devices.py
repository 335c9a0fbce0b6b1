"""Which GPU is a rank's, and do ranks with a GPU and random numbers on it go together? Fakes stand in for CUDA."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from tests.train.launching import on_ranks

from paceline.core.errors import UsageError
from paceline.train.ranks import world


def torch_with(gpus):
    used = []
    cuda = SimpleNamespace(is_available=lambda: gpus > 0, device_count=lambda: gpus, set_device=used.append)
    return SimpleNamespace(cuda=cuda, device=torch.device), used


@pytest.mark.parametrize(
    ("gpus", "place", "device"), [(0, 1, "cpu"), (4, 3, "cuda:3"), (1, 0, "cuda:0"), (1, 3, "cuda:0")]
)
def test_a_rank_takes_its_own_gpu(gpus, place, device, monkeypatch):
    """A launcher that shows each rank one GPU only numbers ranks on."""
    monkeypatch.setenv("LOCAL_RANK", str(place))
    fake, used = torch_with(gpus)
    found = world._device(fake)
    assert str(found) == device
    assert used == ([] if gpus == 0 else [found])


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setenv("RANK", "6")
    with pytest.raises(UsageError, match="rank 6 is number 2 of its machine .* where 2 GPUs are visible"):
        world._device(torch_with(2)[0])


BESIDE = """
import os, sys
import torch

torch.cuda.is_available = lambda: os.environ["RANK"] == "0"
torch.cuda.device_count, torch.cuda.set_device = lambda: 1, lambda device: None
from paceline.train import Engine

Engine({"layout": "dp=3"})
"""


def test_ranks_without_a_gpu_beside_others_are_named(tmp_path):
    """They would wait for each other for ever."""
    program = tmp_path / "program.py"
    program.write_text(BESIDE)
    ran = on_ranks(3, program, timeout_s=60)
    assert ran.returncode == 2
    assert "rank 1 on " in ran.stderr and "rank 2 on " in ran.stderr
    assert "no GPU is visible, but 1 of 3 ranks have one" in ran.stderr


DRAWS = """
import dataclasses, json, sys
from pathlib import Path
from types import SimpleNamespace
import torch
from paceline.core.layout import parse
from paceline.train.ranks.world import draw_apart, join

GPU = SimpleNamespace(type="cuda", index=0)
STATE = []


def put(state, device=None):
    STATE[:] = state.tolist()


torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
world = dataclasses.replace(join(parse("tp=2")), device=GPU)
torch.cuda.get_rng_state = lambda device=None: torch.tensor(STATE, dtype=torch.uint8)
torch.cuda.set_rng_state = put
torch.cuda.manual_seed = lambda seed: put(torch.tensor([0, 0], dtype=torch.uint8))


def of_all():
    every = [None, None]
    torch.distributed.all_gather_object(every, list(STATE))
    return every


STATE[:] = [5, rank]
draw_apart(world)
found = {"begun": of_all()}
saved = world.drawn()
STATE[:] = [9, rank]
world.draw_on(saved, None)
found["another layout"] = of_all()
STATE[:] = [9, rank]
world.draw_on(saved.split()[0], None)
found["of a cpu"] = of_all()
if rank == 0:
    Path(sys.argv[1]).write_text(json.dumps(found))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


def test_ranks_of_a_tp_group_draw_the_same_on_gpus(tmp_path):
    """At first, and after a checkpoint of another layout, whose state of the GPU goes on."""
    program, result = tmp_path / "program.py", tmp_path / "result.json"
    program.write_text(DRAWS)
    ran = on_ranks(2, program, result, timeout_s=60)
    assert result.exists(), ran.stderr[:4000]
    assert json.loads(result.read_text()) == {
        "begun": [[5, 0], [5, 0]],
        "another layout": [[5, 0], [5, 0]],
        "of a cpu": [[0, 0], [0, 0]],
    }
