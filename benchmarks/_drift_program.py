"""An ordinary program of `benchmarks/drift.py`, which clocks the comparison of ranks from inside.

    paceline run --layout dp=2 benchmarks/_drift_program.py MODEL FOLDER

Each rank writes to the folder: for each step its seconds, and the seconds of it that the comparison took.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline.train.unmodified.comparison import drift

sys.path.insert(0, str(Path(__file__).parents[1]))
from examples.gpt import gpt, loss_of

STEPS, BATCH = 64 * 4 + 8, 16
spent_s = [0.0]


def clocked(original: Any) -> Any:
    """Return the function, which adds the time that it takes to the number in `spent_s`."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        begun_s = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            spent_s[0] += time.perf_counter() - begun_s

    return call


def text() -> tuple[nn.Module, TensorDataset, Any]:
    tokens = torch.randint(0, 256, (BATCH * 8, 64))
    return gpt(width=128, depth=4, heads=4, length=64), TensorDataset(tokens, tokens.roll(-1, 1)), loss_of


def pictures() -> tuple[nn.Module, TensorDataset, Any]:
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    data = TensorDataset(torch.randn(BATCH * 8, 3, 64, 64), torch.randint(0, 10, (BATCH * 8,)))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 10)), data, F.cross_entropy


def table() -> tuple[nn.Module, TensorDataset, Any]:
    data = TensorDataset(torch.randn(BATCH * 8, 20), torch.randn(BATCH * 8, 1))
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1)), data, F.mse_loss


def main() -> None:
    drift.Drift.step = clocked(drift.Drift.step)
    drift.Pieces.before, drift.Pieces.after = clocked(drift.Pieces.before), clocked(drift.Pieces.after)
    torch.manual_seed(0)
    model, data, loss_of_batch = {"text": text, "pictures": pictures, "table": table}[sys.argv[1]]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    rows, begun_s, before_s = [], time.perf_counter(), spent_s[0]
    while len(rows) < STEPS:
        for inputs, target in loader:
            optimizer.zero_grad()
            loss_of_batch(model(inputs), target).backward()
            optimizer.step()
            now_s = time.perf_counter()
            rows.append((now_s - begun_s, spent_s[0] - before_s))
            begun_s, before_s = now_s, spent_s[0]
    out = Path(sys.argv[2]) / f"rank{os.environ.get('RANK', '0')}-{os.getpid()}.json"
    out.write_text(json.dumps({"rows": rows[:STEPS], "parameters": sum(each.numel() for each in model.parameters())}))


if __name__ == "__main__":
    main()
