"""One rank of `benchmarks/modes.py`: trains in each of some modes, and says when which loss was reached.

    torchrun --nproc-per-node 4 benchmarks/_modes_ranks.py WORK.json RESULT.json

Each step of a rank sleeps as long as its device would compute; one rank sleeps longer. Rank 0 looks at the loss on
text that nobody trains on, where it has the parameters of all ranks; what that takes is left out of times.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Subset

sys.path.insert(0, str(Path(__file__).parents[1]))
from examples.gpt import Text, gpt, loss_of

from paceline.train import Engine

LENGTH, HELD_OUT, LOOK_EVERY = 16, 128, 4


def model(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return gpt(width=32, depth=1, heads=2, length=LENGTH)


def endless(loader: object) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    while True:
        yield from loader


def looked(trained: torch.nn.Module, held_out: tuple[torch.Tensor, torch.Tensor]) -> float:
    with torch.no_grad():
        return loss_of(trained(held_out[0]), held_out[1]).item()


def stop_key(number: int) -> str:
    return f"modes/{number}/stop"


def train(case: dict, number: int, store: torch.distributed.Store) -> dict:
    """Train until rank 0 has seen the loss that is asked for, or the steps are over."""
    engine = Engine({"layout": f"dp={case['ranks']}", **case["recipe"]})
    trained = model(case["seed"])
    called, _ = engine.setup(trained, lambda m: torch.optim.AdamW(m.parameters(), lr=case["lr"]), loss=loss_of)
    text = Text(LENGTH)
    held_out = tuple(torch.stack(each) for each in zip(*(text[i] for i in range(HELD_OUT))))
    torch.manual_seed(case["seed"])  # the order of samples
    loader = DataLoader(Subset(text, range(HELD_OUT, len(text))), case["batch"], shuffle=True, drop_last=True)
    batches = endless(engine.loader(loader))
    sleep_s = case["slow_s"] if engine.world.rank == case["ranks"] - 1 else case["step_s"]
    every = case["recipe"].get("local", {}).get("every", LOOK_EVERY)
    apart = "asynchronous" in case["recipe"]
    torch.distributed.barrier()
    began, looking, seen, over = time.monotonic(), 0.0, [], -1
    for step in range(1, case["steps"] + 1):
        engine.train_batch(*next(batches))
        time.sleep(sleep_s)
        engine.step()
        if step % every == 0 or (apart and engine.world.rank):
            if engine.is_first:
                from_here = time.monotonic()
                seen.append([from_here - began - looking, looked(trained, held_out)])
                looking += time.monotonic() - from_here
                if seen[-1][1] <= case["target"]:
                    store.set(stop_key(number), str(step))
            if not apart:
                torch.distributed.barrier()
            if store.check([stop_key(number)]):
                over = step
                break
    engine.meet()
    found = {"seen": seen, "steps": step, "reached": over > 0, "end_loss": looked(trained, held_out)}
    if engine.staleness is not None:
        found["ages"] = engine.staleness.ages
        found["waited_s"] = engine.staleness.waited_s
    engine.close()
    return found


def main(cases: list[dict], out: Path) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    store, ranks = torch.distributed.distributed_c10d._get_default_store(), torch.distributed.get_world_size()
    results = []
    for number, case in enumerate(cases):
        every: list[dict | None] = [None] * ranks
        torch.distributed.all_gather_object(every, train({**case, "ranks": ranks}, number, store))
        results.append({**case, "ranks": every})
        if torch.distributed.get_rank() == 0:
            print(case["mode"], case["seed"], [one["steps"] for one in every], every[0]["seen"][-1], flush=True)
            out.write_text(json.dumps(results))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
