"""Two processes share a convolutional model for noisy stripes."""

import argparse
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def stripes(batch, generator):
    angle = torch.randint(0, 4, (batch,), generator=generator)
    y, x = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    waves = torch.stack([torch.sin(x), torch.sin(y), torch.sin(x + y), torch.sin(x - y)])
    return (waves[angle] + torch.randn(batch, 32, 32, generator=generator)).unsqueeze(1), angle


def train(rank, args, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = DDP(
        nn.Sequential(
            nn.Conv2d(1, 24, 5, padding=2), nn.ReLU(), nn.Conv2d(24, 24, 5, padding=2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(24 * 16, 4),
        )
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    for step in range(args.steps):
        image, angle = stripes(args.batch, generator)
        loss = nn.functional.cross_entropy(model(image), angle)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 15 == 0:
            print(step, round(loss.item(), 3), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=36)
    p.add_argument("--batch", type=int, default=40)
    with tempfile.TemporaryDirectory() as scratch:
        mp.spawn(train, (p.parse_args(), scratch), nprocs=2)
