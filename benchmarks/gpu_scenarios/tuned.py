"""Train for long enough to be tuned: tuned.py"""

import time

import torch
from _parts import Numbers, loss_of, network, to_cuda
from torch.utils.data import DataLoader


class Slow(Numbers):
    def __getitem__(self, index):
        until = time.thread_time() + 0.0005
        while time.thread_time() < until:
            pass
        return super().__getitem__(index)


if __name__ == "__main__":
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2000):
        for batch in DataLoader(Slow(640), batch_size=8):
            inputs, target = to_cuda(batch)
            loss_of(model, inputs, target).backward()
            optimizer.step()
            optimizer.zero_grad()
