"""One rank of `benchmarks/costs.py`: the same batches under each of some recipes, in turns with a loop by hand.

    torchrun --nproc-per-node 2 benchmarks/_costs_ranks.py WORK.json RESULT.json

The loop by hand is on rank 0 alone, with the whole batch, while the others wait. Bytes sent are what the kernel counts
as written by this process, which in these loops are its connections to other ranks.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from examples.gpt import gpt, loss_of

from paceline.train import Engine

WIDTH, DEPTH, HEADS, LENGTH, BATCH = 128, 4, 4, 64, 16
Loop = Callable[[], None]


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return gpt(width=WIDTH, depth=DEPTH, heads=HEADS, length=LENGTH)


def optimizer(trained: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(trained.parameters(), lr=1e-3)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(0, 256, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    return tokens[:, :-1], tokens[:, 1:]


def by_hand() -> Loop:
    trained = model()
    updates, (inputs, target) = optimizer(trained), batch()

    def step() -> None:
        loss_of(trained(inputs), target).backward()
        updates.step()
        updates.zero_grad()

    return step


class Case:
    """A recipe under the engine."""

    def __init__(self, recipe: dict) -> None:
        self.engine = Engine(recipe)
        self.held, self.updates = self.engine.setup(model(), optimizer, loss=loss_of)
        layout = self.engine.world.layout
        inputs, target = batch()
        samples, positions = BATCH // layout.samples, LENGTH // layout.cp
        first, begin = samples * self.engine.world.sample_part, positions * self.engine.world.position("cp")
        self.batch = [each[first : first + samples, begin : begin + positions] for each in (inputs, target)]

    def step(self) -> None:
        self.engine.train_batch(*self.batch)
        self.engine.step()

    def kept_bytes(self) -> int:
        """Parameters, their gradients and optimizer state of this rank, and what its mode of replicas holds."""
        state = [value for each in self.updates.state.values() for value in each.values() if torch.is_tensor(value)]
        own = list(self.held.parameters())
        held = [*own, *own, *state, *of_replicas(vars(self.engine).get("_replicas"))]
        return sum(getattr(value, "_local_tensor", value).nbytes for value in held)

    def peak_bytes(self) -> int:
        """What forward and backward take at their peak beside that; gradients are there already."""
        for value in self.held.parameters():
            if value.grad is None:
                value.grad = torch.zeros_like(value)
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            options = {"activities": [torch.profiler.ProfilerActivity.CPU], "profile_memory": True}
            with torch.profiler.profile(**options) as profiler:
                self.engine.train_batch(*self.batch)
            profiler.export_chrome_trace(file.name)
            events = json.loads(Path(file.name).read_text())["traceEvents"]
        self.engine.step()
        changes = sorted((one["ts"], one["args"]["Bytes"]) for one in events if one.get("name") == "[memory]")
        now = peak = 0
        for _, change in changes:
            now += change
            peak = max(peak, now)
        return peak


def of_replicas(mode: object) -> list[torch.Tensor]:
    """Tensors that a mode of replicas holds beside model and optimizer: copies of parameters."""
    held = []
    for value in vars(mode).values() if mode else ():
        copies = value.values() if isinstance(value, dict) else [value]
        held += [each for each in copies if torch.is_tensor(each)]
    return held + [each.grad for each in held if each.grad is not None]


def sent() -> int:
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("wchar")).split()[1])


def timed(step: Loop, steps: int) -> dict[str, float]:
    """Wall seconds, CPU seconds of all ranks together and bytes sent by the rank that sends most, a step."""
    together = torch.distributed.is_initialized()
    if together:
        torch.distributed.barrier()
    wrote, cpu, wall = sent(), time.process_time(), time.perf_counter()
    for _ in range(steps):
        step()
    wall, cpu, wrote = time.perf_counter() - wall, time.process_time() - cpu, sent() - wrote
    used, most = torch.tensor([cpu, 0.0], dtype=torch.float64), torch.tensor([wall, wrote], dtype=torch.float64)
    if together:
        torch.distributed.all_reduce(used)
        torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
    return {"wall_s": float(most[0]) / steps, "cpu_s": float(used[0]) / steps, "sent_bytes": float(most[1]) / steps}


def largest(value: int) -> int:
    most = torch.tensor(value)
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
    return int(most)


def main(work: dict, out: Path) -> None:
    torch.set_num_threads(1)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        torch.distributed.init_process_group("gloo")
    first = int(os.environ.get("RANK", "0")) == 0
    hand = by_hand() if first else lambda: None
    cases = [Case(recipe) for recipe in work["recipes"]]
    loops = [hand, *(case.step for case in cases)]
    rows: list[list[dict[str, float]]] = [[] for _ in loops]
    for number in range(work["warm"] + work["rounds"]):
        for place in range(len(loops)):
            one = (number + place) % len(loops)
            measured = timed(loops[one], work["steps"])
            if number >= work["warm"]:
                rows[one].append(measured)
    kept = [{"kept_bytes": largest(case.kept_bytes()), "peak_bytes": largest(case.peak_bytes())} for case in cases]
    for case in cases:
        case.engine.close()
    if first:
        out.write_text(json.dumps({"by_hand": rows[0], "cases": rows[1:], "memory": kept}))
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
