"""Train and evaluate with paceline.train on batches of paceline.data.Loader: engine_loader.py; by torchrun or alone"""

import gc
import os

import torch
import torch.distributed as dist
from _parts import tell_memory
from saves import Block

from paceline.data import Loader
from paceline.train import Engine


class Rows:
    """Counts its samples, to see that an evaluation reads each of them."""

    def __init__(self) -> None:
        self.read = set()

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.read.add(index)
        return torch.full((64,), index / 96), torch.full((64,), 0.5)


def run(layout: str, **settings) -> None:
    with Engine({"layout": layout, "checks": {"first_step": False}}) as engine:
        blocks = torch.nn.Sequential(Block(), Block())
        adam = lambda model: torch.optim.AdamW(model.parameters())  # noqa: E731
        engine.setup(blocks, adam, loss=torch.nn.functional.mse_loss)
        steps = []
        for epoch in range(3):
            count = 0
            for inputs, target in engine.loader(Loader(Rows(), 8, shuffle=True, **settings)):
                assert inputs.device == engine.device, (inputs.device, engine.device)
                engine.train_batch(inputs, target)
                engine.step()
                count += 1
                if epoch == 1 and count == 4:
                    break
            steps.append(count)
            gc.collect()
        rows = Rows()
        found = engine.evaluate(Loader(rows, 8, **settings))
        assert "threads" not in settings or len(rows.read) == len(rows), sorted(rows.read)
        if engine.is_first:
            print(layout, settings, steps, sorted(found))


def main() -> None:
    several = "RANK" in os.environ
    if several:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("cpu:gloo,cuda:nccl")
    for layout in ("dp=2", "shard=2") if several else ("",):
        for settings in ({}, {"threads": 2}, {"processes": 2}):
            run(layout, device="cuda", **settings)
            run(layout, **settings)
    if not several or dist.get_rank() == 0:
        tell_memory()
    if several:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
