"""Training programs of several shapes that measure the truth about themselves.

    python program.py SHAPE [--amount MS] [--steps N]

The last line of the output is JSON: the steps that were made, and the share of the time after the first step that was
spent waiting for data, in the program's own code (an environment), and in evaluation, by clocks around these parts.
"""

from __future__ import annotations

import argparse
import json
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

WIDTH = 256
SPENT: Counter[str] = Counter()
BEGUN: list[float] = []  # when the first step ended


def clocked(part: str, work: Callable) -> object:
    """Do work on the clock of a part."""
    begun = time.perf_counter()
    try:
        return work()
    finally:
        SPENT[part] += time.perf_counter() - begun


class Samples(Dataset):
    """Samples that wait, every `every`-th for `slow_ms`."""

    def __init__(self, count: int, wait_ms: float, every: int = 0, slow_ms: float = 0.0) -> None:
        self.count, self.wait_ms, self.every, self.slow_ms = count, wait_ms, every, slow_ms

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        slow = self.every and index % self.every == self.every // 2
        time.sleep((self.slow_ms if slow else self.wait_ms) / 1e3)
        return torch.full((WIDTH,), index % 7 / 7.0)


class Trained:
    """A model and its optimizer."""

    def __init__(self, width: int = WIDTH, depth: int = 6) -> None:
        layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
        self.model = nn.Sequential(*layers, nn.Linear(width, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-3)
        self.steps = 0

    def step(self, batch: torch.Tensor) -> None:
        loss = self.model(batch).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        if not BEGUN:
            BEGUN.append(time.perf_counter())
            SPENT.clear()


def train_on(batches: Iterator, limit: int) -> int:
    trained, end = Trained(), object()
    while trained.steps < limit and (batch := clocked("data_wait", lambda: next(batches, end))) is not end:
        trained.step(batch)
    return trained.steps


def plain(wanted: argparse.Namespace) -> int:
    """All the time is computing."""
    trained, batch = Trained(), torch.randn(256, WIDTH)
    for _ in range(wanted.steps):
        trained.step(batch)
    return trained.steps


def serial(wanted: argparse.Namespace) -> int:
    """A loader without workers."""
    loader = DataLoader(Samples(8 * wanted.steps, wanted.amount / 8), 8, shuffle=True)
    return train_on(iter(loader), wanted.steps)


def jitter(wanted: argparse.Namespace) -> int:
    """A loader without workers; one of 96 samples is slow."""
    loader = DataLoader(Samples(8 * wanted.steps, 0.05, 96, 12 * wanted.amount), 8, shuffle=True)
    return train_on(iter(loader), wanted.steps)


def of_a_queue(fill: Callable[[queue.Queue], None]) -> Iterator:
    ready: queue.Queue = queue.Queue(4)
    threading.Thread(target=fill, args=(ready,), daemon=True).start()
    return iter(ready.get, None)


def producer(wanted: argparse.Namespace) -> int:
    """A thread of the program's own fills a queue."""

    def fill(ready: queue.Queue) -> None:
        for _ in range(wanted.steps):
            time.sleep(wanted.amount / 1e3)
            ready.put(torch.ones(8, WIDTH))
        ready.put(None)

    return train_on(of_a_queue(fill), wanted.steps)


def thread(wanted: argparse.Namespace) -> int:
    """A thread iterates a DataLoader and fills a queue."""

    def fill(ready: queue.Queue) -> None:
        for batch in DataLoader(Samples(8 * wanted.steps, wanted.amount / 8), 8):
            ready.put(batch)
        ready.put(None)

    return train_on(of_a_queue(fill), wanted.steps)


def environment(wanted: argparse.Namespace) -> int:
    """A policy acts in an environment that computes with NumPy."""
    trained, state = Trained(depth=2), np.zeros(WIDTH, np.float32)

    def act(action: float) -> np.ndarray:
        until = time.perf_counter() + wanted.amount / 8e3
        field = state
        while time.perf_counter() < until:
            field = np.tanh(np.sort(field) + 0.01 * action)
        return field

    for _ in range(wanted.steps):
        seen = []
        for _ in range(8):
            with torch.no_grad():
                action = float(trained.model(torch.from_numpy(state)[None]))
            seen.append(torch.from_numpy(state))
            state = clocked("other", lambda chosen=action: act(chosen))
        trained.step(torch.stack(seen))
    return trained.steps


def evaluation(wanted: argparse.Namespace) -> int:
    """Every eighth step is followed by an evaluation."""
    trained, batch = Trained(), torch.randn(64, WIDTH)

    def evaluate() -> None:
        trained.model.eval()
        until = time.perf_counter() + 8 * wanted.amount / 1e3
        with torch.no_grad():
            while time.perf_counter() < until:
                trained.model(batch)
        trained.model.train()

    for step in range(wanted.steps):
        trained.step(batch)
        if step % 8 == 7:
            clocked("evaluation", evaluate)
    return trained.steps


def sizes(wanted: argparse.Namespace) -> int:
    """Larger and larger models, one after the other: no step gets slower."""
    steps = 0
    for depth in (2, 4, 8, 16):
        trained, batch = Trained(depth=depth), torch.randn(128, WIDTH)
        for _ in range(wanted.steps // 4):
            trained.step(batch)
        steps += trained.steps
    return steps


def clients(wanted: argparse.Namespace) -> int:
    """A loader of a few batches for each client."""
    steps, data = 0, TensorDataset(torch.randn(40, WIDTH))
    while steps < wanted.steps:
        trained = Trained(depth=2)
        for (batch,) in DataLoader(data, 8, shuffle=True):
            trained.step(batch)
        steps += trained.steps
    return steps


SHAPES = (plain, serial, jitter, producer, thread, environment, evaluation, sizes, clients)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=[shape.__name__ for shape in SHAPES])
    parser.add_argument("--amount", type=float, default=6.0, help="ms of a step that the part takes")
    parser.add_argument("--steps", type=int, default=160)
    wanted = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    steps = next(shape for shape in SHAPES if shape.__name__ == wanted.shape)(wanted)
    passed = time.perf_counter() - BEGUN[0]
    print(json.dumps({"steps": steps, "shares": {part: spent / passed for part, spent in SPENT.items()}}))


if __name__ == "__main__":
    main()
