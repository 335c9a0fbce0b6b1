"""Data-parallel training without a wrapper: gradients are averaged one parameter after another."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=1500)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    torch.set_num_threads(1)
    distributed = int(os.environ.get("WORLD_SIZE", 1)) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, args.width), nn.ReLU(), nn.Linear(args.width, args.width), nn.ReLU(),
        nn.Linear(args.width, args.width), nn.ReLU(), nn.Linear(args.width, 1),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    torch.manual_seed(100 + rank)
    for step in range(args.steps):
        x = torch.randn(6, 64)
        loss = nn.functional.mse_loss(model(x), x[:, :4].sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        if distributed:
            average_gradients(model)
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"{step} {loss.item():.3f}", flush=True)
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
