"""A small model with its engine and batches, for programs on several ranks and for tests on one process.

A program calls `begin`, collects what JSON can store, and passes it to `finish`; `launching.results_of` returns it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

from paceline.train import Engine

_DRAWN = torch.Generator().manual_seed(0)
BATCHES = [(torch.randn(8, 4, generator=_DRAWN), torch.randn(8, 2, generator=_DRAWN)) for _ in range(5)]


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)

    def forward(self, x):
        return x + self.fc2(self.act(self.fc1(x)))


def small_model(freeze=()):
    """Return the same model at each call, with the parameters of the modules at these positions frozen."""
    torch.manual_seed(5)
    model = nn.Sequential(Mlp(), nn.LayerNorm(4), Mlp(), nn.Linear(4, 2))
    for number in freeze:
        model[number].requires_grad_(False)
    return model


def adamw(model):
    return torch.optim.AdamW(model.parameters(), 0.1)


def sgd(model):
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1, momentum=0.9)


def engine_of(layout: str, model: nn.Module | None = None, optimizer: Any = adamw, **recipe: Any) -> Engine:
    """Return an engine that trains a model, by default the small one, in two micro-batches."""
    engine = Engine({"layout": layout, "memory": {"micro_batches": 2}, **recipe})
    engine.setup(small_model() if model is None else model, optimizer, loss=mse_loss)
    return engine


def train(engine: Engine, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Take a step with this rank's part of each batch; return the last loss."""
    parts, part = engine.world.layout.samples, engine.world.sample_part
    for inputs, target in batches:
        engine.train_batch(inputs.chunk(parts)[part], target.chunk(parts)[part])
        loss = engine.loss()
        engine.step()
    return loss


def step(engine: Engine, steps: int = 1) -> float:
    """Take steps with the first batch; return the last loss."""
    return train(engine, BATCHES[:1] * steps)


def linear_engine(steps: int = 0, **recipe: Any) -> Engine:
    """Return an engine of one process for a linear layer, after some steps."""
    torch.manual_seed(0)
    engine = Engine(recipe)
    engine.setup(nn.Linear(2, 1), lambda m: torch.optim.SGD(m.parameters(), 0.1), loss=mse_loss)
    for _ in range(steps):
        engine.train_batch(torch.ones(2, 2), torch.ones(2, 1))
        engine.step()
    return engine


def begin() -> Path:
    """Join the ranks of this program; return the path for its results."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    return Path(sys.argv[1])


def finish(results: Any) -> None:
    """Write the results of rank 0, and leave the other ranks."""
    if torch.distributed.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(results))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
