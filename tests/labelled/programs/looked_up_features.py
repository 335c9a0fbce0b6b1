"""Two processes under torchrun; one asks a slow store for features inside the model's forward or backward."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def ask_store(seconds):
    if dist.get_rank() == 1:
        time.sleep(seconds)


class Recorded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ask_store(ctx.seconds)
        return grad, None


class Model(nn.Module):
    def __init__(self, forward_s, backward_s):
        super().__init__()
        self.forward_s, self.backward_s = forward_s, backward_s
        self.first = nn.Linear(64, 256)
        self.rest = nn.Sequential(nn.ReLU(), nn.BatchNorm1d(256), nn.Linear(256, 10))

    def forward(self, x):
        if self.forward_s:
            ask_store(self.forward_s)
        return self.rest(Recorded.apply(self.first(x), self.backward_s))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--forward", type=float, default=0.04)
    parser.add_argument("--backward", type=float, default=0.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DDP(Model(args.forward, args.backward))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(100):
        x, y = torch.randn(64, 64), torch.randint(0, 10, (64,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
