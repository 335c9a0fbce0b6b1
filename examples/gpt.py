"""A small GPT on the text of Python's own manual, on any layout: what the engine does, in one file.

python examples/gpt.py --steps 20
torchrun --nproc-per-node 4 examples/gpt.py --layout shard=2,tp=2 --precision bf16 --accumulate 2
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.data import DataLoader, Dataset

from paceline.train import Engine, positions
from paceline.train.recipe import add_arguments


class Text(Dataset):
    """Pieces of a text as bytes: int64, [length] and the same one byte further on."""

    def __init__(self, length: int) -> None:
        from pydoc_data.topics import topics

        text = "\n".join(topics.values()).encode()
        self.tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self.length = length

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        piece = self.tokens[index * self.length : (index + 1) * self.length + 1]
        return piece[:-1], piece[1:]


class Embedding(nn.Module):
    """Tokens [batch, length] to [batch, length, width], with their positions in the whole sequence."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.positions = nn.Embedding(length, width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.tokens(tokens) + self.positions(positions(tokens.shape[1], tokens.device))


class Attention(nn.Module):
    """Causal attention; as many heads as there are columns for: with tp a rank has some of them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head = width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width, bias=False)
        self.o_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            matrix(x).view(batch, length, -1, self.head).transpose(1, 2)
            for matrix in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    """Two layers, four times as wide between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up_proj = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.down_proj = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.up_proj(x)))


class Block(nn.Module):
    """A layer of the transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm_2, self.mlp = nn.LayerNorm(width), MLP(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class Head(nn.Module):
    """The distribution of the next byte: logits [batch, length, 256]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.logits = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(self.norm(x))


def gpt(width: int, depth: int, heads: int, length: int) -> nn.Sequential:
    """A row of layers, so that a pipeline can cut it."""
    blocks = [Block(width, heads) for _ in range(depth)]
    return nn.Sequential(Embedding(width, length), *blocks, Head(width))


def loss_of(logits: Tensor, target: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), target.flatten())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    add = parser.add_argument
    add("--steps", type=int, default=20)
    add("--batch-size", type=int, default=16, help="of all ranks together")
    add("--length", type=int, default=64)
    add("--width", type=int, default=64)
    add("--depth", type=int, default=4)
    add("--json", type=Path, metavar="FILE")
    add("--save", type=Path, metavar="FOLDER", help="a checkpoint at the end")
    add("--load", type=Path, metavar="FOLDER", help="begin from a checkpoint, of any layout")
    return parser.parse_args()


def train(engine: Engine, options: argparse.Namespace) -> dict:
    torch.manual_seed(0)
    model = gpt(options.width, options.depth, heads=4, length=options.length)
    engine.setup(model, lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3), loss=loss_of)
    if options.load:
        engine.load(options.load)
    loader = engine.loader(DataLoader(Text(options.length), options.batch_size, shuffle=True, drop_last=True))
    losses, norms, skipped, began, batches = [], [], 0, time.perf_counter(), iter(loader)
    for number in range(options.steps):
        engine.train_batch(*next(batches))
        losses.append(engine.loss())
        step = engine.step()
        skipped += not step.applied
        norms.append(None if step.norm is None else float(step.norm))
        if engine.is_first and (number % 10 == 0 or number == options.steps - 1):
            print(f"step {number:4}  loss {losses[-1]:.4f}")
    tokens = options.steps * options.batch_size * options.length
    rate = tokens / (time.perf_counter() - began)
    if options.save:
        engine.save(options.save)
    settings = {"layout": str(engine.recipe.layout), "precision": str(engine.recipe.precision)}
    if engine.staleness:  # how old this rank's updates were, with [asynchronous]
        settings["ages"] = engine.staleness.ages
    return {**settings, "losses": losses, "norms": norms, "skipped_steps": skipped, "tokens_per_s": rate}


if __name__ == "__main__":
    options = arguments()
    with Engine(options) as engine:
        result = train(engine, options)
        if engine.is_first:
            print(f"{result['tokens_per_s']:,.0f} tokens/s on {result['layout']}")
            if options.json:
                options.json.write_text(json.dumps(result, indent=1) + "\n")
