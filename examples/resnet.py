"""A small ResNet that tells ten scenes apart by photographs, on any layout without tp and cp.

python examples/resnet.py --steps 20
torchrun --nproc-per-node 2 examples/resnet.py --layout dp=2 --precision bf16 --accumulate 2

Groups of channels are normalised, not batches: a rank or a part of a batch would have statistics of its own samples,
and the training would be another one on each layout.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

sys.path.insert(0, str(Path(__file__).resolve().parent / "photos"))
from make_photos import make_photos

from paceline.data import Loader
from paceline.train import Engine
from paceline.train.recipe import add_arguments


class Photos(Dataset):
    """Photographs in one folder per scene: float32, [3, size, size] around 0, and the number of the scene."""

    def __init__(self, folder: Path, size: int) -> None:
        self.scenes = sorted(path.name for path in folder.iterdir() if path.is_dir())
        self.files = [
            (path, label) for label, name in enumerate(self.scenes) for path in sorted((folder / name).glob("*.jpg"))
        ]
        self.size = size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.files[index]
        with Image.open(path) as file:
            pixels = np.asarray(file.convert("RGB").resize((self.size, self.size)), dtype=np.float32)
        return torch.from_numpy(pixels.transpose(2, 0, 1) / 127.5 - 1), label


def convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """A convolution of 3 x 3, and channels brought to one scale by eights."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.GroupNorm(outputs // 8, outputs))


class Block(nn.Module):
    """Two convolutions, and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.inside = nn.Sequential(convolution(inputs, outputs, stride), nn.ReLU(), convolution(outputs, outputs))
        same = inputs == outputs and stride == 1
        self.around = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return (self.inside(x) + self.around(x)).relu()


class Head(nn.Module):
    """Logits [samples, scenes] of the mean over all places."""

    def __init__(self, inputs: int, scenes: int) -> None:
        super().__init__()
        self.logits = nn.Linear(inputs, scenes)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x.mean((2, 3)))


def resnet(width: int, depth: int, scenes: int) -> nn.Sequential:
    """A row of layers, so that a pipeline can cut it: four stages of some blocks, each twice as wide as the last."""
    blocks, inputs = [], width
    for stage in range(4):
        outputs = width << stage
        for number in range(depth):
            blocks.append(Block(inputs, outputs, stride=2 if stage and not number else 1))
            inputs = outputs
    stem = nn.Sequential(convolution(3, width, stride=2), nn.ReLU())
    return nn.Sequential(stem, *blocks, Head(inputs, scenes))


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    add = parser.add_argument
    add("--data", type=Path, metavar="FOLDER", help="of photographs; made when not given")
    add("--steps", type=int, default=20)
    add("--batch-size", type=int, default=32, help="of all ranks together")
    add("--size", type=int, default=64, help="side of a picture, in pixels")
    add("--width", type=int, default=16, help="channels of the first stage")
    add("--depth", type=int, default=2, help="blocks of each of four stages")
    add("--json", type=Path, metavar="FILE")
    add("--save", type=Path, metavar="FOLDER", help="a checkpoint at the end")
    add("--load", type=Path, metavar="FOLDER", help="begin from a checkpoint, of any layout")
    return parser.parse_args(words)


def photographs(engine: Engine, folder: Path | None) -> Path:
    """One rank makes them, where they are not there, and the others wait."""
    if engine.is_first:
        make_photos(folder)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    return make_photos(folder)


def without_end(loader: Loader) -> Iterator[tuple[Tensor, Tensor]]:
    """Epoch after epoch."""
    while True:
        yield from loader


def train(engine: Engine, options: argparse.Namespace) -> dict:
    photos = Photos(photographs(engine, options.data), options.size)
    torch.manual_seed(0)
    model = resnet(options.width, options.depth, len(photos.scenes))
    engine.setup(model, lambda model: torch.optim.SGD(model.parameters(), 0.01, momentum=0.9), loss=cross_entropy)
    loader = engine.loader(Loader(photos, options.batch_size, shuffle=True, ends="drop", processes=0))
    if options.load:
        engine.load(options.load)
    losses, norms, skipped, began, batches = [], [], 0, time.perf_counter(), without_end(loader)
    for number in range(options.steps):
        engine.train_batch(*next(batches))
        losses.append(engine.loss())
        step = engine.step()
        skipped += not step.applied
        norms.append(None if step.norm is None else float(step.norm))
        if engine.is_first and (number % 10 == 0 or number == options.steps - 1):
            print(f"step {number:4}  loss {losses[-1]:.4f}")
    rate = options.steps * options.batch_size / (time.perf_counter() - began)
    if options.save:
        engine.save(options.save)
    settings = {"layout": str(engine.recipe.layout), "precision": str(engine.recipe.precision)}
    return {**settings, "losses": losses, "norms": norms, "skipped_steps": skipped, "images_per_s": rate}


if __name__ == "__main__":
    options = arguments()
    with Engine(options) as engine:
        result = train(engine, options)
        if engine.is_first:
            print(f"{result['images_per_s']:,.0f} images/s on {result['layout']}")
            if options.json:
                options.json.write_text(json.dumps(result, indent=1) + "\n")
