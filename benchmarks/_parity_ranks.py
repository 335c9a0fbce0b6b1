"""One rank of `benchmarks/parity.py`: trains under each of some recipes, and says how far it is from one process.

    torchrun --nproc-per-node 4 benchmarks/_parity_ranks.py WORK.json RESULT.json

The reference is a loop written by hand on torch alone: the whole batch at once, on one rank by itself. A case is a
recipe as TOML has it; `from` numbers an earlier case whose checkpoint, after half of the steps, it begins with;
`ragged` leaves out other numbers of tokens in each sample, so that parts of a mean over tokens weigh differently;
with `plan` the model says itself how it is split.
"""

from __future__ import annotations

import functools
import json
import shutil
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import torch
from torch.distributed import checkpoint

sys.path.insert(0, str(Path(__file__).parents[1]))
from examples.gpt import Text, gpt, loss_of

from paceline.train import Engine

BATCH, LENGTH, CLIP = 32, 16, 0.5
LEFT_OUT = -100  # what cross_entropy ignores


# What a model says itself of how it is split, in the words of Hugging Face models.
PLAN = {
    "0.tokens": "embedding_rowwise",
    "*.attention.?_proj": "colwise",
    "*.attention.o_proj": "rowwise",
    "*.mlp.up_proj": "colwise",
    "*.mlp.down_proj": "rowwise",
    "7.logits": "colwise_gather_output",
}


def model(plan: bool = False) -> torch.nn.Module:
    torch.manual_seed(0)
    made = gpt(width=32, depth=6, heads=4, length=LENGTH)
    if plan:
        made.tp_plan = PLAN
    return made


def optimizer(trained: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(trained.parameters(), lr=1e-3)


class Ragged(Text):
    """Samples whose last tokens have no target, up to half of them."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, target = super().__getitem__(index)
        target = target.clone()
        target[LENGTH - index % (LENGTH // 2) :] = LEFT_OUT
        return inputs, target


def batches(ragged: bool) -> torch.utils.data.DataLoader:
    order = torch.Generator().manual_seed(1)
    text = Ragged(LENGTH) if ragged else Text(LENGTH)
    return torch.utils.data.DataLoader(text, BATCH, shuffle=True, drop_last=True, generator=order)


@functools.cache
def by_hand(steps: int, ragged: bool) -> dict:
    """What one process makes of it."""
    trained = model()
    updates = optimizer(trained)
    losses, norms = [], []
    for inputs, target in islice(batches(ragged), steps):
        loss = loss_of(trained(inputs), target)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(trained.parameters(), CLIP).item())
        updates.step()
        updates.zero_grad()
        losses.append(loss.item())
    return {"losses": losses, "norms": norms, "parameters": trained.state_dict()}


def tokens(target: torch.Tensor) -> torch.Tensor:
    return (target != LEFT_OUT).sum()


def under(case: dict, steps: int, begin: Path | None, folder: Path, goes_on: bool) -> dict:
    """What the engine makes of it; its checkpoint is in a folder, at half of the steps too if a case goes on."""
    engine = Engine({"optimizer": {"clip_norm": CLIP}, **case["recipe"]})
    ragged = case.get("ragged", False)
    options = {"weight": tokens if ragged else None, "sample": next(iter(batches(ragged)))[0]}
    held, updates = engine.setup(model(case.get("plan", False)), optimizer, loss=loss_of, **options)
    first = steps // 2 if begin else 0
    if begin:
        engine.load(begin / "half")
    losses, norms = [], []
    # After load() the loader goes on where it was.
    for number, batch in enumerate(islice(engine.loader(batches(ragged)), steps - first), first):
        engine.train_batch(*batch)
        losses.append(engine.loss())
        norms.append(float(engine.step().norm))
        if goes_on and number == steps // 2 - 1:
            engine.save(folder / "half")
    engine.save(folder / "end")
    return {"first": first, "losses": losses, "norms": norms, "state_bytes": state_bytes(held, updates)}


def state_bytes(held: torch.nn.Module, updates: torch.optim.Optimizer) -> int:
    """Bytes of parameters and optimizer state on the rank that has most."""
    state = [value for each in updates.state.values() for value in each.values() if torch.is_tensor(value)]
    tensors = [getattr(value, "_local_tensor", value) for value in [*held.parameters(), *state]]
    most = torch.tensor(sum(value.nbytes for value in tensors))
    torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
    return int(most)


def read(folder: Path) -> dict:
    """The whole parameters of a checkpoint, put together by one process."""
    state = {"model": model().state_dict()}
    checkpoint.load(state, checkpoint_id=folder, no_dist=True)
    return state["model"]


def farthest(found: list[float], expected: list[float]) -> float:
    return max(abs(one - other) for one, other in zip(found, expected, strict=True))


def compared(case: dict, steps: int, found: dict, folder: Path) -> dict:
    hand = by_hand(steps, case.get("ragged", False))
    parameters = read(folder / "end")
    of_parameters = [(parameters[name] - value).abs().max().item() for name, value in hand["parameters"].items()]
    return {
        **case,
        "loss_difference": farthest(found["losses"], hand["losses"][found["first"] :]),
        "norm_difference": farthest(found["norms"], hand["norms"][found["first"] :]),
        "parameter_difference": max(of_parameters),
        "last_loss": found["losses"][-1],
        "state_bytes": found["state_bytes"],
    }


def shared_folder() -> Path:
    home = [tempfile.mkdtemp() if torch.distributed.get_rank() == 0 else None]
    torch.distributed.broadcast_object_list(home)
    return Path(home[0])


def main(steps: int, cases: list[dict], out: Path) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    home, results, first = shared_folder(), [], torch.distributed.get_rank() == 0
    begun_with = {case.get("from") for case in cases}
    for number, case in enumerate(cases):
        began = time.monotonic()
        begin = home / str(case["from"]) if "from" in case else None
        found = under(case, steps, begin, home / str(number), number in begun_with)
        if first:
            results.append({**compared(case, steps, found, home / str(number)), "wall_s": time.monotonic() - began})
    torch.distributed.barrier()
    if first:
        shutil.rmtree(home)
        out.write_text(json.dumps(results))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    work = json.loads(Path(sys.argv[1]).read_text())
    main(work["steps"], work["cases"], Path(sys.argv[2]))
