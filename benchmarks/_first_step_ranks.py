"""One rank of `benchmarks/first_step.py`: trains cases for a step, and says which were refused.

torchrun --nproc-per-node 2 benchmarks/_first_step_ranks.py RESULT.json [NAME ... | --once]
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from _first_step_cases import Case, faults
from _first_step_ordinary import ordinary

from paceline.core.errors import UsageError
from paceline.train import Engine

STEPS = 3
TURNS = 7  # in which the cost is measured


def part(engine: Engine, batch: tuple[Any, Any]) -> tuple[Any, Any]:
    """This rank's part of a batch, as the engine's loader gives it."""
    layout, world = engine.world.layout, engine.world
    if layout.samples > 1:
        batch = tuple(value.chunk(layout.samples)[world.sample_part] for value in batch)
    if layout.cp > 1:
        batch = tuple(value.chunk(layout.cp, 1)[world.position("cp")] for value in batch)
    return batch


def trained(case: Case, compared: bool, steps: int = STEPS) -> list[float]:
    """The seconds of some steps."""
    engine = Engine({"layout": case.layout, **case.recipe, "checks": {"first_step": compared}})
    torch.manual_seed(11)
    model, _ = engine.setup(
        case.model(), lambda m: torch.optim.SGD(m.parameters(), lr=0.01), loss=case.loss, weight=case.weight
    )
    if case.setup:
        case.setup(getattr(model, "module", model))
    inputs, target = part(engine, case.data())
    if case.given:
        inputs, target = case.given(inputs, target)
    seconds = []
    for _ in range(steps):
        began = time.perf_counter()
        if case.own:
            with engine.micro_step(last=True):
                engine.backward(case.own(model, inputs, target))
        else:
            engine.train_batch(inputs, target)
        engine.step()
        seconds.append(time.perf_counter() - began)
    return seconds


def found(case: Case) -> dict[str, Any]:
    with case.patch() if case.patch else contextlib.nullcontext():
        result: dict[str, Any] = {"name": case.name, "layout": case.layout, "kind": case.kind}
        try:
            result["seconds"] = trained(case, compared=True)
        except UsageError as error:
            result["refused"] = str(error)
        except Exception as error:
            result["failed"] = f"{type(error).__name__}: {error}"[:300]
    return result


def cost(layout: str) -> dict[str, Any]:
    """What the first step takes longer with the comparison, in steps: the median of some turns, and each."""
    from _first_step_cases import token_loss
    from examples.gpt import gpt

    drawn = torch.Generator().manual_seed(1)
    batch = tuple(torch.randint(0, 64, (32, 64), generator=drawn) for _ in range(2))
    recipe = {"memory": {"micro_batches": 4 if "pp" in layout else 1}}
    case = Case("cost", layout, lambda: gpt(width=128, depth=6, heads=4, length=64), token_loss, lambda: batch, recipe)
    trained(case, compared=False, steps=1)  # what is done once a process
    found = []
    for _ in range(TURNS):
        plain, compared = (trained(case, compared=on, steps=5) for on in (False, True))
        found.append((compared[0] - plain[0]) / statistics.median(plain[2:] + compared[2:]))
    return {"name": "cost", "layout": layout, "kind": "cost", "cost_steps": statistics.median(found), "turns": found}


def main(out: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    torch._logging.set_logs()
    cases = [case for case in [*faults(), *ordinary()] if not names or case.name in names]
    if names == ["--once"]:  # each ordinary model on one of its layouts
        of_name: dict[str, list[Case]] = {}
        for case in ordinary():
            of_name.setdefault(case.name, []).append(case)
        cases = faults() + [some[number % len(some)] for number, some in enumerate(of_name.values())]
    results = []
    for number, case in enumerate(cases, 1):
        results.append(found(case))
        if torch.distributed.get_rank() == 0:
            print(f"{number} of {len(cases)}: {case.name}, {case.layout}", flush=True)
    results += [cost(layout) for layout in ("dp=2", "shard=2", "tp=2", "pp=2", "cp=2") if not names or "cost" in names]
    torch.distributed.barrier()
    if torch.distributed.get_rank() == 0:
        out.write_text(json.dumps(results, indent=1))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
