"""Radar maps, fetched from far by a thread of its own one batch ahead. Under torchrun every rank has such a thread."""

import argparse
import os
import queue
import threading
import time

import torch
import torch.distributed as dist
from torch import nn

options = argparse.ArgumentParser()
options.add_argument("--fetch-ms", type=float, default=18)
options.add_argument("--readers", type=int, default=1)
options = options.parse_args()
torch.set_num_threads(1)
torch.manual_seed(3)
STEPS = 150


def fetch(results, places):
    for place in places:
        time.sleep(options.fetch_ms / 1e3)
        results.put((torch.full((24, 128), place / STEPS), torch.full((24,), place % 9)))


def maps():
    results = queue.Queue(2)
    for reader in range(options.readers):
        places = range(reader, STEPS, options.readers)
        threading.Thread(target=fetch, args=(results, places), daemon=True).start()
    for _ in range(STEPS):
        yield results.get()


net = nn.Sequential(nn.Linear(128, 384), nn.ReLU(), nn.Linear(384, 9))
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    net = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
for radar, storm in maps():
    loss = nn.functional.cross_entropy(net(radar), storm)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", loss.item())
if "RANK" in os.environ:
    dist.destroy_process_group()
