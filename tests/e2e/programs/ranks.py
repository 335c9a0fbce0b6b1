"""Two ranks that train with DDP and FSDP2 and tell, each in a file of its own, all that must not change when watched.

torchrun --nproc-per-node 2 ranks.py FOLDER        or        python ranks.py FOLDER (spawns its ranks itself)
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def digest(tensors):
    return hashlib.sha256(repr([t.tolist() for t in tensors]).encode()).hexdigest()[:16]


def train(model, wrapped):
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(96, 8), torch.randn(96, 1))
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=True))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    losses = []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = functional.mse_loss(wrapped(inputs), targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            losses += [loss.item().hex(), mean.item().hex()]
    return losses


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


def told():
    model = small()
    yield "ddp", train(model, DistributedDataParallel(model)), digest(model.parameters())
    model = small()
    wrapped = DistributedDataParallel(model)
    torch.manual_seed(2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(8):
        with wrapped.no_sync() if step % 4 < 3 else torch.enable_grad():
            wrapped(torch.randn(4, 8)).sum().backward()
        if step % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    yield "accumulation", digest(model.parameters())
    yield from sharded()
    yield "compiled", compiled_collective()
    for failure in (lambda: dist.all_reduce("no tensor"), lambda: dist.broadcast(torch.ones(1), src=7)):
        try:
            failure()
        except Exception:
            yield "failure", traceback.format_exc().splitlines()
    objects = [None, None]
    dist.all_gather_object(objects, {"rank": dist.get_rank()})
    work = dist.all_reduce(torch.ones(2), async_op=True)
    yield objects, work.wait(), type(work).__name__, torch.rand(()).item().hex()


def sharded():
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = small()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    losses = train(model, model)
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    yield "fsdp", losses, digest(state.values()), [type(layer).__name__ for layer in model]


def compiled_collective():
    def total(value):
        value = value * 2
        dist.all_reduce(value)
        return value + 1

    return torch.compile(total, backend="eager", fullgraph=True)(torch.ones(2)).tolist()


def work(rank, folder, world):
    if rank is not None:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        lines = [json.dumps(line) for line in told()]
    finally:
        dist.destroy_process_group()
        time.sleep(0.2)  # a thread of Gloo that lets go of the last exchange after the interpreter's end aborts it
    Path(folder, f"rank{os.environ['RANK']}").write_text("\n".join(lines))


if __name__ == "__main__":
    if "RANK" in os.environ:
        work(None, sys.argv[1], 2)
    else:
        os.environ["MASTER_PORT"] = sys.argv[2]
        torch.multiprocessing.spawn(work, (sys.argv[1], 2), nprocs=2)
