"""Are the names of all tensors sent to rank 0 only, when a checkpoint or an export is written?"""

from __future__ import annotations

import pytest
from tests.train.launching import results_of

PROGRAM = """
import pickle, sys
import torch
from torch import nn
from tests.train.small_model import begin, finish
from paceline.train import Engine

OUT = begin()
received = []


def noted(name):
    original = getattr(torch.distributed, name)

    def call(*args, **kwargs):
        found = original(*args, **kwargs)
        received.append(pickle.dumps([*args, *kwargs.values()][0]))
        return found

    setattr(torch.distributed, name, call)


for name in ("broadcast_object_list", "all_gather_object"):
    noted(name)


def names_received(call):
    received.clear()
    call()
    return sum(each.count(b"layer_") for each in received)


found = {}
for layout in sys.argv[2:]:
    engine = Engine({"layout": layout, "checks": {"first_step": False}})
    made = nn.Sequential()
    for number in range(4):
        made.add_module(f"layer_{number}", nn.Linear(4, 4))
    engine.setup(made, lambda m: torch.optim.AdamW(m.parameters(), 0.1), loss=nn.functional.mse_loss)
    engine.train_batch(torch.ones(8, 4), torch.ones(8, 4))
    engine.step()
    calls = [
        lambda: engine.save(OUT.parent / layout),
        lambda: engine.save(OUT.parent / f"{layout} later", wait=False) or engine.close(),
        lambda: engine.export(OUT.parent / f"{layout}.pt"),
    ]
    own = [names_received(call) for call in calls] if torch.distributed.get_rank() else [call() for call in calls]
    every = [None] * 4
    torch.distributed.all_gather_object(every, own)
    found[layout] = every[1:]
engine.save(OUT.parent / "seen")
received.clear()
torch.distributed.broadcast_object_list(["layer_0" if torch.distributed.get_rank() == 0 else None])
found["seen"] = sum(each.count(b"layer_") for each in received)
finish(found)
"""
LAYOUTS = ["shard=4", "shard=2,pp=2", "pp=4"]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return results_of(PROGRAM, 4, tmp_path_factory.mktemp("names"), *LAYOUTS)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_ranks_receive_no_names(found, layout):
    assert found[layout] == [[0, 0, 0]] * 3
    assert found["seen"] == 1
