"""Two processes; each reads its half of the data from its own disk."""

import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Half(Dataset):
    def __init__(self, rank, rows, seconds):
        g = torch.Generator().manual_seed(rank)
        self.x = torch.randn(rows, 96, generator=g)
        self.y = self.x[:, :8].sum(1, keepdim=True)
        self.seconds = seconds

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        if self.seconds:
            time.sleep(self.seconds)  # what this disk needs for one record
        return self.x[i], self.y[i]


def run(rank, args, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    disks = [float(s) for s in args.disks.split(",")]
    loader = DataLoader(Half(rank, 16 * args.steps, disks[rank]), batch_size=16)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(96, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 1))
    net = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 25 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--disks", default="0,0.0025", help="seconds per record on the disk of each process")
    parser.add_argument("--steps", type=int, default=70)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, (args, os.path.join(folder, "init")), nprocs=2)


if __name__ == "__main__":
    main()
