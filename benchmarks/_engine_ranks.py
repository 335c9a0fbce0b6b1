"""One rank of `benchmarks/engine.py`: the same steps by each of some loops, in turns; the times go to a file.

torchrun --nproc-per-node 2 benchmarks/_engine_ranks.py ROUNDS STEPS RESULT.json
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1]))
from examples.gpt import gpt, loss_of

from paceline.train import Engine

BATCH, LENGTH, PARTS, CLIP = 16, 64, 2, 1.0
Loop = Callable[[torch.Tensor, torch.Tensor], None]  # one step of a rank's batch


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return gpt(width=128, depth=4, heads=4, length=LENGTH)


def optimizer(trained: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(trained.parameters(), lr=1e-3)


def by_hand(ranks: int) -> tuple[torch.nn.Module, Loop]:
    trained = model()
    called = DistributedDataParallel(trained, gradient_as_bucket_view=True) if ranks > 1 else trained
    updates = optimizer(trained)

    def step(inputs: torch.Tensor, target: torch.Tensor) -> None:
        for number, (part, wanted) in enumerate(zip(inputs.chunk(PARTS), target.chunk(PARTS))):
            with called.no_sync() if ranks > 1 and number < PARTS - 1 else nullcontext():
                (loss_of(called(part), wanted) / PARTS).backward()
        torch.nn.utils.clip_grad_norm_(trained.parameters(), CLIP)
        updates.step()
        updates.zero_grad()

    return trained, step


def by_engine(ranks: int) -> tuple[torch.nn.Module, Loop]:
    recipe = {"layout": f"dp={ranks}", "memory": {"micro_batches": PARTS}, "optimizer": {"clip_norm": CLIP}}
    engine = Engine({**recipe, "checks": {"samples": False}})  # each rank has its own batches
    trained = model()
    engine.setup(trained, optimizer, loss=loss_of)

    def step(inputs: torch.Tensor, target: torch.Tensor) -> None:
        engine.train_batch(inputs, target)
        engine.step()

    return trained, step


def by_accelerate(ranks: int) -> tuple[torch.nn.Module, Loop]:
    from accelerate import Accelerator
    from accelerate.utils import DistributedDataParallelKwargs

    same = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=PARTS, kwargs_handlers=[same])
    trained = model()
    called, updates = accelerator.prepare(trained, optimizer(trained))

    def step(inputs: torch.Tensor, target: torch.Tensor) -> None:
        for part, wanted in zip(inputs.chunk(PARTS), target.chunk(PARTS)):
            with accelerator.accumulate(called):
                accelerator.backward(loss_of(called(part), wanted))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(called.parameters(), CLIP)
                updates.step()
                updates.zero_grad()

    return trained, step


def by_fabric(ranks: int) -> tuple[torch.nn.Module, Loop]:
    from lightning_fabric import Fabric
    from lightning_fabric.strategies import DDPStrategy

    fabric = Fabric(
        accelerator="cpu",
        devices=ranks,
        strategy=DDPStrategy(gradient_as_bucket_view=True, process_group_backend="gloo") if ranks > 1 else "auto",
    )
    fabric.launch()
    trained = model()
    called, updates = fabric.setup(trained, optimizer(trained))

    def step(inputs: torch.Tensor, target: torch.Tensor) -> None:
        for number, (part, wanted) in enumerate(zip(inputs.chunk(PARTS), target.chunk(PARTS))):
            with fabric.no_backward_sync(called, enabled=ranks > 1 and number < PARTS - 1):
                fabric.backward(loss_of(called(part), wanted) / PARTS)
        fabric.clip_gradients(called, updates, max_norm=CLIP)
        updates.step()
        updates.zero_grad()

    return trained, step


LOOPS = {"by hand": by_hand, "engine": by_engine, "accelerate": by_accelerate, "lightning_fabric": by_fabric}


def timed(step: Loop, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, float]:
    """Wall and CPU seconds a step, CPU of all ranks together."""
    wall, cpu = time.perf_counter(), time.process_time()
    for batch in batches:
        step(*batch)
    used = torch.tensor([time.process_time() - cpu], dtype=torch.float64)
    wall = time.perf_counter() - wall
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(used)
    return {"wall_s": wall / len(batches), "cpu_s": float(used) / len(batches)}


def main(rounds: int, steps: int, out: Path) -> None:
    torch.set_num_threads(1)
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
    there = [name for name in LOOPS if name in ("by hand", "engine") or importlib.util.find_spec(name)]
    made = {name: LOOPS[name](ranks) for name in there}
    draws = torch.Generator().manual_seed(rank)
    tokens = [torch.randint(0, 256, (BATCH // ranks, LENGTH + 1), generator=draws) for _ in range(steps)]
    batches = [(each[:, :-1], each[:, 1:]) for each in tokens]
    times: dict[str, list[dict[str, float]]] = {name: [] for name in there}
    for number in range(rounds + 1):
        for place in range(len(there)):
            name = there[(number + place) % len(there)]
            measured = timed(made[name][1], batches)
            if number:  # the first round warms up
                times[name].append(measured)
    first = made["by hand"][0].state_dict()
    differ = {
        name: max((value - first[key]).abs().max().item() for key, value in trained.state_dict().items())
        for name, (trained, _) in made.items()
    }
    if rank == 0:
        out.write_text(json.dumps({"times": times, "parameter_difference": differ}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
