"""Are gradients exchanged as the recipe says, and is the training what that makes of it?"""

from __future__ import annotations

import json

import pytest
from tests.train.launching import on_ranks

from paceline.core.errors import UsageError
from paceline.train.recipe import made

STEPS = 14

TRAINS = f"""
import json, sys
from pathlib import Path
import torch
from torch import nn
from torch.nn.functional import mse_loss
from paceline.core.errors import UsageError
from paceline.train import Engine

torch.set_num_threads(1)
INPUTS = torch.randn({STEPS}, 8, 32, generator=torch.Generator().manual_seed(0))  # steps, samples, width
TARGET = torch.randn({STEPS}, 8, 32, generator=torch.Generator().manual_seed(1))


def train(ddp):
    torch.manual_seed(0)
    engine = Engine({{"layout": "dp=2", "ddp": ddp, "memory": {{"micro_batches": 2}}}})
    net = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))
    model, _ = engine.setup(net, lambda model: torch.optim.SGD(model.parameters(), lr=0.5), loss=mse_loss)
    part, gradients = slice(4 * engine.world.rank, 4 * engine.world.rank + 4), []
    for inputs, target in zip(INPUTS, TARGET):
        engine.train_batch(inputs[part], target[part])
        gradients.append(net[2].weight.grad.clone())
        engine.step()
    other = net[2].weight.detach().clone()
    torch.distributed.broadcast(other, 0)
    assert torch.equal(other, net[2].weight), "ranks came apart"
    return gradients, model


def apart(one, other):
    return [((a - b).norm() / b.norm()).item() for a, b in zip(one, other)]


torch.distributed.init_process_group("gloo")
whole, model = train({{}})
fp16, _ = train({{"comm_hook": "fp16"}})
low, buckets = train({{"comm_hook": "powersgd", "bucket_cap_mb": 3}})
refused = {{}}
for ddp in ({{"comm_hook": "bf16"}}, {{"comm_hook": "powersgd"}}):
    try:
        train(ddp)
    except UsageError as error:
        refused[ddp["comm_hook"]] = str(error)
found = {{
    "fp16": apart(fp16, whole),
    "powersgd": apart(low, whole),
    "ranks": [int(torch.linalg.matrix_rank(gradient, rtol=1e-4)) for gradient in low],
    "buckets": [model.bucket_bytes_cap, buckets.bucket_bytes_cap],
    "refused": refused,
}}
if torch.distributed.get_rank() == 0:
    Path(sys.argv[1], "found.json").write_text(json.dumps(found))
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dp")
    (folder / "train.py").write_text(TRAINS)
    ran = on_ranks(2, folder / "train.py", folder)
    assert ran.returncode == 0, ran.stderr[:4000]
    return json.loads((folder / "found.json").read_text())


def test_half_precision_rounds_gradients(found):
    assert all(1e-6 < each < 2e-3 for each in found["fp16"])


def test_powersgd_sends_matrices_of_rank_1_from_step_10_on(found):
    assert all(each < 1e-6 for each in found["powersgd"][:10])
    assert min(found["powersgd"][10:]) > 0.1
    assert found["ranks"][10:] == [1] * (STEPS - 10)
    assert min(found["ranks"][:10]) > 1


def test_the_size_of_buckets_is_as_asked(found):
    assert found["buckets"] == [25 << 20, 3 << 20]


def test_what_the_backend_cannot_do_is_refused(found):
    assert "needs NCCL, and ranks are connected by gloo; use 'fp16'" in found["refused"]["bf16"]
    assert "in one bucket; set ddp.bucket_cap_mb = 1" in found["refused"]["powersgd"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"layout": "dp=2,tp=2", "ddp": {"comm_hook": "fp16"}}, "dp=2,tp=2 does not use DDP"),
        ({"layout": "shard=2", "ddp": {"bucket_cap_mb": 50}}, "bucket_cap_mb = 50: layout shard=2 does not use DDP"),
        ({"ddp": {"comm_hook": "fp16"}}, "layout dp=1 does not use DDP"),
        (
            {"layout": "dp=2", "local": {"every": 2}, "ddp": {"bucket_cap_mb": 50}},
            "exchange parameters instead of gradients",
        ),
        ({"layout": "dp=2", "ddp": {"comm_hook": "fp8"}}, "it takes fp16, bf16, powersgd"),
        ({"layout": "dp=2", "ddp": {"bucket_cap_mb": 0}}, "whole number of MiB from 1 on"),
        (
            {"layout": "dp=2", "ddp": {"comm_hook": "powersgd"}, "precision": {"autocast": "fp16"}},
            "carry an overflow into every later step",
        ),
    ],
)
def test_what_is_wrong_is_named(content, says):
    with pytest.raises(UsageError, match=says):
        made(content)


def test_gradients_of_sequence_parts_are_exchanged_by_ddp_too():
    assert made({"layout": "dp=2,cp=2", "ddp": {"comm_hook": "fp16"}}).ddp.comm_hook == "fp16"
