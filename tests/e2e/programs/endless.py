"""Trains until it is ended. Says on stdout that it goes; `--times FILE` gets the time of every step's end."""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

options = argparse.ArgumentParser()
options.add_argument("--times")
options.add_argument("--workers", type=int, default=0)
options.add_argument("--ranks", action="store_true", help="train with DDP")
options.add_argument("--saves", action="store_true", help="take SIGTERM as a wish to save and leave")
options.add_argument("--code", type=int, default=5, help="of leaving by SIGTERM")
options.add_argument("--memory", choices=["limited", "eaten"], help="run out of memory after some steps")
options.add_argument("--steps", type=int, default=200_000)
options.add_argument("--then", default="", help="what to do after so many steps")
given = options.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Linear(4, 1)
wrapped = model
if given.ranks:
    torch.distributed.init_process_group("gloo")
    wrapped = nn.parallel.DistributedDataParallel(model)
if given.saves:

    def save(*_):
        print("saved", flush=True)
        sys.exit(given.code)

    signal.signal(signal.SIGTERM, save)
rank = os.environ.get("RANK", "0")
log = open(f"{given.times}{rank}", "a", buffering=1) if given.times else None  # noqa: SIM115
data = TensorDataset(torch.randn(given.steps * 4, 4), torch.randn(given.steps * 4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
kept = []
forked = "fork" if given.workers else None  # a worker that is not forked would run this file
loader = DataLoader(data, batch_size=4, num_workers=given.workers, multiprocessing_context=forked)
for step, (inputs, targets) in enumerate(loader):
    optimizer.zero_grad()
    functional.mse_loss(wrapped(inputs), targets).backward()
    optimizer.step()
    if log:
        log.write(f"{time.monotonic()}\n")
    time.sleep(0.002)
    if step == 100:
        print(f"going {os.getpid()}", flush=True)
    if step > 100 and given.memory:
        if given.memory == "limited" and not kept:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 200_000_000,) * 2)
        kept.append(bytearray(10_000_000))
if given.then == "exit":
    sys.exit(3)
if given.then == "leave":
    os._exit(4)
if given.then == "crash":
    model(torch.ones(3))
