"""Train a small network to tell scenes apart by photographs, each decoded, turned, cut and recoloured on the CPU.

The augmentation of a sample is drawn from its number, so that a run can be repeated: epochs are long and every number
stands for another cut of one of the photographs.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)


class Cuts(Dataset):
    """Random pieces of photographs in one folder per class."""

    def __init__(self, folder, size, count):
        self.files = sorted(folder.glob("*/*.jpg"))
        self.classes = sorted({path.parent.name for path in self.files})
        self.size, self.count = size, count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        draw = np.random.default_rng(number)
        path = self.files[number % len(self.files)]
        with Image.open(path) as file:
            image = file.convert("RGB")
        image = image.rotate(draw.uniform(-15, 15), Image.Resampling.BILINEAR)
        side = int(min(image.size) * draw.uniform(0.5, 1.0))
        left, top = draw.integers(0, image.width - side + 1), draw.integers(0, image.height - side + 1)
        box = (int(left), int(top), int(left) + side, int(top) + side)
        image = image.resize((self.size, self.size), Image.Resampling.BICUBIC, box)
        pixels = np.asarray(image, dtype=np.float32) / 255
        if draw.random() < 0.5:
            pixels = pixels[:, ::-1]
        pixels = np.clip(pixels * draw.uniform(0.7, 1.3), 0.0, 1.0)
        grey = (pixels @ GREY)[..., None]
        pixels = grey + (pixels - grey) * draw.uniform(0.7, 1.3)
        return torch.from_numpy(pixels.transpose(2, 0, 1).astype(np.float32)), self.classes.index(path.parent.name)


def block(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True, help="folder of photographs")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=24, help="channels of the first layer")
    parser.add_argument("--size", type=int, default=64, help="side of the network's input, in pixels")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the other core is for the photographs
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = Cuts(args.data, args.size, count=1_000_000)
    model = nn.Sequential(
        block(3, args.width),
        block(args.width, 2 * args.width),
        block(2 * args.width, 4 * args.width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * args.width, len(data.classes)),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    for step, (images, labels) in enumerate(loader, 1):
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item()}", flush=True)
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
