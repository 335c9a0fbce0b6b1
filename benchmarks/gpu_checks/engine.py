"""Compare losses and speed of the engine on one GPU with a hand-written loop, in fp32, bf16 and compiled."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

LIMIT_S = 150
BATCH, LENGTH, ROUNDS, STEPS = 16, 512, 5, 10
CASES: dict[str, dict[str, Any]] = {"fp32": {}, "bf16": {"precision": "bf16"}, "bf16, compiled": {"precision": "bf16"}}
CASES["bf16, compiled"]["compile"] = True
TOLERANCE = {"fp32": 1e-5, "bf16": 1e-5, "bf16, compiled": 2e-3}  # of the loss; what is compiled fuses otherwise
MOST_TIME = 1.02
Step = Callable[..., None]  # a step of training with inputs and target; with a list, its loss is added there


def check() -> dict[str, Any]:
    answer: dict[str, Any] = {"figures": {}, "failed": [], "not_done": []}
    for name, case in CASES.items():
        found = answer["figures"][name] = compared(by_hand(**case), by_engine(**case))
        if found["loss_difference"] > TOLERANCE[name]:
            answer["failed"].append(f"{name}: losses differ by up to {found['loss_difference']:.2e}")
        if found["ratio"] > MOST_TIME:
            answer["failed"].append(f"{name}: a step takes {found['ratio']:.3f} times that of a loop by hand")
    return answer


def model() -> torch.nn.Module:
    from examples.gpt import gpt

    torch.manual_seed(0)
    return gpt(width=768, depth=8, heads=12, length=LENGTH)


def optimizer(trained: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(trained.parameters(), lr=3e-4)


def by_hand(precision: str = "fp32", compile: bool = False) -> Step:
    from examples.gpt import loss_of

    trained = model().cuda()
    called, updates = torch.compile(trained) if compile else trained, optimizer(trained)

    def step(inputs: torch.Tensor, target: torch.Tensor, told: list[float] | None = None) -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_of(called(inputs), target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        updates.step()
        updates.zero_grad()
        if told is not None:
            told.append(loss.item())

    return step


def by_engine(precision: str = "fp32", compile: bool = False) -> Step:
    from examples.gpt import loss_of

    from paceline.train import Engine

    recipe: dict[str, Any] = {"layout": "dp=1", "optimizer": {"clip_norm": 1.0}}
    recipe |= {"precision": {"autocast": precision}} if precision != "fp32" else {}
    recipe |= {"compute": {"compile": "default"}} if compile else {}
    engine = Engine(recipe)
    engine.setup(model(), optimizer, loss=loss_of)

    def step(inputs: torch.Tensor, target: torch.Tensor, told: list[float] | None = None) -> None:
        engine.train_batch(inputs, target)
        if told is not None:
            told.append(engine.loss())
        engine.step()

    return step


def compared(hand: Step, engine: Step) -> dict[str, Any]:
    """Return the largest relative difference of losses, and times in turns: medians, and the ratio's median."""
    torch.manual_seed(1)
    texts = torch.randint(0, 256, (8, BATCH, LENGTH + 1), device="cuda")
    batches = [(text[:, :-1], text[:, 1:]) for text in texts]
    losses: tuple[list[float], list[float]] = ([], [])
    for step, told in zip((hand, engine), losses, strict=True):
        for n in range(20):
            step(*batches[n % 8], told)
    rounds = [[timed(step, batches) for step in (hand, engine)] for _ in range(ROUNDS)]
    return {
        "loss_difference": max(abs(a - b) / abs(a) for a, b in zip(*losses, strict=True)),
        "losses": [losses[0][-1], losses[1][-1]],
        "step_s": [statistics.median(times) for times in zip(*rounds, strict=True)],
        "ratio": statistics.median(ours / theirs for theirs, ours in rounds),
        "ratios": sorted(ours / theirs for theirs, ours in rounds),
    }


def timed(step: Step, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for n in range(STEPS):
        step(*batches[n % len(batches)])
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / STEPS
