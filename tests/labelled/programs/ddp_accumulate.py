"""DistributedDataParallel with gradient accumulation."""

import argparse
import contextlib
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def train(rank, args, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(128, args.width), nn.ReLU(), nn.Linear(args.width, args.width), nn.ReLU(),
                         nn.Linear(args.width, 1))  # fmt: skip
    model = nn.parallel.DistributedDataParallel(body)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    torch.manual_seed(rank + 1)
    for step in range(args.steps):
        optimizer.zero_grad()
        for micro in range(args.accumulate):
            x = torch.randn(24, 128)
            last = micro == args.accumulate - 1
            with contextlib.nullcontext() if last or not args.no_sync else model.no_sync():
                loss = nn.functional.mse_loss(model(x), x[:, :6].abs().sum(1, keepdim=True)) / args.accumulate
                loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"{step}: {loss.item() * args.accumulate:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--accumulate", type=int, default=6)
    cli.add_argument("--steps", type=int, default=30)
    cli.add_argument("--width", type=int, default=1100)
    cli.add_argument("--no-sync", action="store_true")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, (cli.parse_args(), folder), nprocs=2)
