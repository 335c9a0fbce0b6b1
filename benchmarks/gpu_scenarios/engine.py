"""Train by paceline.train.Engine: engine.py [--layout ...]; started by torchrun where the layout has several ranks."""

import os
from argparse import ArgumentParser
from dataclasses import replace

import torch
from _parts import Numbers, tell_memory
from torch.utils.data import DataLoader

from paceline.train import Engine
from paceline.train.parallel import shard
from paceline.train.recipe import Checks, add_arguments, from_arguments

shard.watch_forward_writes = lambda module, refuse: None  # it compares values, and an emulated device computes none


class Block(torch.nn.Module):
    """Attention without a mask and a feed-forward part, under the names that `tp` knows."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.head = width // heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (torch.nn.Linear(width, width) for _ in range(4))
        self.up_proj, self.down_proj = torch.nn.Linear(width, 64), torch.nn.Linear(64, width)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, self.head)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.o_proj(mixed)
        return x + self.down_proj(torch.nn.functional.relu(self.up_proj(x)))


class Tokens(Numbers):
    def __getitem__(self, index):
        return torch.full((16, 32), index / self.size), torch.full((16, 32), 0.5)


def main() -> None:
    parser = ArgumentParser()
    add_arguments(parser)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    unchecked = Checks(first_step=False)  # it compares values, and an emulated device computes none
    with Engine(replace(from_arguments(options), checks=unchecked)) as engine:
        blocks = torch.nn.Sequential(*(Block() for _ in range(4)))
        first, second = ("q_proj", "k_proj", "v_proj", "up_proj"), ("o_proj", "down_proj")
        blocks.tp_plan = {f"*.{n}": "colwise" for n in first} | {f"*.{n}": "rowwise" for n in second}
        engine.setup(blocks, lambda model: torch.optim.AdamW(model.parameters()), loss=torch.nn.functional.mse_loss)
        steps = 0
        for inputs, target in engine.loader(DataLoader(Tokens(8 * options.steps), batch_size=8, num_workers=2)):
            assert inputs.is_cuda, inputs.device
            engine.train_batch(inputs, target)
            engine.loss()
            engine.step()
            steps += 1
        if os.environ.get("RANK", "0") == "0":
            print(steps)
            tell_memory()


if __name__ == "__main__":
    main()
