"""What the programs of the scenarios share: a small model, numbers to train on, and what memory is still in use."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

torch.backends.cudnn.enabled = False  # an emulated driver has none


class Numbers(Dataset):
    """Rows of 64 numbers and a class."""

    def __init__(self, size: int = 128) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((64,), index / self.size), index % 10


def loader(size: int = 128, **options: Any) -> DataLoader:
    return DataLoader(Numbers(size), batch_size=8, **options)


def network(device: str = "cuda") -> torch.nn.Module:
    def block() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))

    return torch.nn.Sequential(block(), block(), block(), torch.nn.Linear(64, 10)).to(device)


def to_cuda(batch: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [one.to("cuda", non_blocking=True) for one in batch]


def loss_of(model: Callable[[Any], Any], inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(inputs), target)


def train(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Any],
    move: Callable[[Any], Any] = to_cuda,
) -> int:
    """Make a step of each batch; return how many steps that were."""
    steps = 0
    for batch in batches:
        inputs, target = move(batch)
        loss_of(model, inputs, target).backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    return steps


def tell_memory() -> None:
    """Print the bytes that are allocated on all devices, and in pinned memory, when all is done."""
    gc.collect()
    for index in range(torch.cuda.device_count()):
        torch.cuda.synchronize(index)
    torch.empty(1, pin_memory=True)  # blocks whose copies have ended are taken back at the next request only
    device = [torch.cuda.memory_allocated(index) for index in range(torch.cuda.device_count())]
    pinned = torch.cuda.host_memory_stats().get("active_bytes.current", 0)
    print("memory", json.dumps({"device": device, "pinned": pinned}), flush=True)
