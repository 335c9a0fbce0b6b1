"""Models that get lists: of views, each with all samples, or of images, one for each sample. Both are compared."""

from __future__ import annotations

import json

import pytest
from tests.train.launching import on_ranks

PROGRAM = """
import sys
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from tests.train.small_model import begin, finish
from paceline.core.errors import UsageError
from paceline.train import Engine

DRAWN = torch.Generator().manual_seed(0)
ROWS = torch.randn(24, 6, generator=DRAWN)
IMAGES = [torch.randn(1, 8, 8, generator=DRAWN) for _ in range(24)]
BOXES = [{"boxes": torch.rand(1 + i % 3, 2, generator=DRAWN), "label": i % 4} for i in range(24)]


class Views(Dataset):
    def __init__(self, kind):
        self.kind = kind

    def __len__(self):
        return len(ROWS)

    def __getitem__(self, i):
        views = self.kind([ROWS[i], ROWS[i] + 0.1, ROWS[i] - 0.1])
        return views, i


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 4))

    def forward(self, views):
        found = torch.stack([self.net(view) for view in views], 1)
        return found, found.mean(1)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Conv2d(1, 4, 3), nn.Linear(4, 2)

    def forward(self, images):
        return self.head(self.body(torch.stack(list(images))).relu().mean((2, 3)))


class ByImage(nn.Module):
    'Returns a list with an output for each image.'

    def __init__(self, kind):
        super().__init__()
        self.body, self.kind = nn.Conv2d(1, 4, 3), kind

    def forward(self, images):
        return [self.kind(self.body(image[None])[0].flatten(1).T) for image in images]


def places_of(output):
    return output["places"] if isinstance(output, dict) else output[0] if isinstance(output, tuple) else output


def of_images(output, targets):
    losses = [places_of(own).mean(0)[:2].sub(each["boxes"]).abs().mean() for own, each in zip(output, targets)]
    return torch.stack(losses).mean()


def pictures(batch_size=8):
    images = [torch.cat([image] * (1 + i % 3), 1) for i, image in enumerate(IMAGES)]
    return DataLoader(list(zip(images, BOXES)), batch_size=batch_size, collate_fn=columns)


def of_views(output, target):
    parts, mean = output
    return (parts - mean.detach()[:, None] - 1).pow(2).mean() + F.cross_entropy(mean, target % 4)


def of_boxes(output, targets):
    pairs = zip(output, targets)
    return torch.stack([F.l1_loss(own.expand_as(each["boxes"]), each["boxes"]) for own, each in pairs]).mean()


def columns(samples):
    return tuple(list(column) for column in zip(*samples))


def detection():
    return DataLoader(list(zip(IMAGES, BOXES)), batch_size=8, collate_fn=columns)


CASES = {
    "views in a loop": (Encoder, lambda: DataLoader(Views(list), batch_size=8), of_views, {}, True),
    "views": (Encoder, lambda: DataLoader(Views(list), batch_size=8), of_views, {}, False),
    "a tuple of views": (Encoder, lambda: DataLoader(Views(tuple), 8), of_views, {"micro_batches": 2}, False),
    "boxes": (Detector, detection, of_boxes, {"micro_batches": 2}, False),
    "boxes in a loop": (Detector, detection, of_boxes, {"micro_batches": 2}, True),
    "tensors": (lambda: ByImage(lambda each: each), pictures, of_images, {}, False),
    "tuples": (lambda: ByImage(lambda each: (each, each * 2)), pictures, of_images, {"micro_batches": 2}, False),
    "dictionaries": (lambda: ByImage(lambda each: {"places": each}), pictures, of_images, {}, False),
    "dictionaries in a loop": (lambda: ByImage(lambda each: {"places": each}), pictures, of_images, {}, True),
}


def evaluated_alone(model, loss):
    'The mean over the images, each evaluated alone.'
    with torch.no_grad():
        return torch.stack([loss(model([image]), [boxes]) for (image,), (boxes,) in pictures(1)]).mean().item()


def alone(make, loader, loss):
    torch.manual_seed(0)
    model, found = make(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for inputs, target in loader():
        value = loss(model(inputs), target)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(value.item())
    return [*found, evaluated_alone(model, loss)] if loss is of_images else found


def on_ranks(layout, make, loader, loss, memory, own_loop):
    torch.manual_seed(0)
    engine = Engine({"layout": layout, "memory": memory})
    found = []
    try:
        model, _ = engine.setup(make(), lambda model: torch.optim.AdamW(model.parameters(), lr=0.01), loss=loss)
        for inputs, target in engine.loader(loader()):
            if own_loop:
                for part, wanted in engine.split((inputs, target)):
                    with engine.micro_step():
                        engine.backward(loss(model(part), wanted))
            else:
                engine.train_batch(inputs, target)
            found.append(engine.loss())
            engine.step()
        if loss is of_images:  # 11, 11 and 2 images
            found.append(engine.evaluate(pictures(11))["loss"])
    except UsageError as error:
        return str(error)
    return found


begin()
found = {name: [alone(*case[:3]), on_ranks(sys.argv[2], *case)] for name, case in CASES.items()}
finish(found)
"""


@pytest.fixture(scope="module", params=["dp=2", "shard=2"])
def found(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lists")
    (folder / "program.py").write_text(PROGRAM)
    done = on_ranks(2, folder / "program.py", folder / "result.json", request.param, timeout_s=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "result.json").read_text()), done.stderr


@pytest.mark.parametrize(
    "name",
    [
        *("views in a loop", "views", "a tuple of views", "boxes", "boxes in a loop"),
        *("tensors", "tuples", "dictionaries", "dictionaries in a loop"),
    ],
)
def test_lists_are_split_and_train_as_on_one_process(found, name):
    one, several = found[0][name]
    assert several == pytest.approx(one, rel=1e-5)


def test_all_of_them_are_compared(found):
    assert "Encoder is not compared" not in found[1]
    assert "Detector is not compared" not in found[1]
    assert "ByImage is not compared" not in found[1]
    assert "in the first step only" not in found[1]
