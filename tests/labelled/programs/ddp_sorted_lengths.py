"""Two processes under torchrun; sentences are sorted by length and dealt out in two halves."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Reader(nn.Module):
    def __init__(self, words=400, width=64):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, 3)

    def forward(self, ids):
        return self.out(self.gru(self.embed(ids))[0].mean(1))


def sentences(rank, world, short, long, batches, dealt, batch=16):
    g = torch.Generator().manual_seed(0)
    lengths = torch.linspace(short, long, batches * world).long().tolist()
    mine = lengths[rank::world] if dealt else lengths[rank * batches : (rank + 1) * batches]
    for length in mine:
        kind = torch.randint(0, 3, (batch,), generator=g)
        yield (torch.randint(0, 200, (batch, length), generator=g) + 66 * kind[:, None]), kind


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", type=int, default=4)
    parser.add_argument("--long", type=int, default=130)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--dealt", action="store_true", help="deal out one by one instead of in halves")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(Reader())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(args.epochs):
        for ids, kind in sentences(rank, world, args.short, args.long, args.batches, args.dealt):
            loss = nn.functional.cross_entropy(model(ids), kind)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
