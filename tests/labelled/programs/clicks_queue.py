"""Online learning: a thread receives events and puts batches into a queue; the model learns from each as it comes."""

import argparse
import queue
import threading
import time

import torch
from torch import nn


def receive(into, count, pause):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        time.sleep(pause)
        x = torch.randn(64, 40, generator=generator)
        into.put((x, (x[:, 0] + x[:, 1] > 0).float()))
    into.put(None)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pause", type=float, default=0.03)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    events = queue.Queue(maxsize=8)
    threading.Thread(target=receive, args=(events, 200, args.pause), daemon=True).start()
    model = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    seen = 0
    while (batch := events.get()) is not None:
        x, y = batch
        loss = nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += len(x)
        if seen % 3200 == 0:
            print(f"{seen} events, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
