"""Two ranks; rank 0 also keeps a diary of every weight, in plain Python, after each step."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = int(os.environ["RANK"])
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 160), nn.ReLU(), nn.Linear(160, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.randn(4096, 64, generator=torch.Generator().manual_seed(rank))
    diary = open("diary.txt", "w") if rank == 0 else None
    for step in range(200):
        rows = data[torch.randint(0, 4096, (32,))]
        loss = nn.functional.cross_entropy(model(rows), rows[:, :8].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if diary and step % args.every == 0:
            for name, weight in model.named_parameters():
                diary.write(f"{step} {name} " + " ".join(f"{value:.3f}" for value in weight.flatten().tolist()) + "\n")
            diary.seek(0)
    if rank == 0:
        print("loss", loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
