"""Train a small convolutional network to tell ten scenes apart by photographs, as many people would write it.

Photographs are read from a network drive as JPEG, cropped, turned, flipped and recoloured, while the network waits for
them. The drive is simulated: each read takes `--latency-ms` longer than from the local disk.

    python examples/photos/train.py
    paceline run examples/photos/train.py                 # the same, watched
    paceline run examples/photos/train.py --workers 2
"""

import argparse
import random
import time
from pathlib import Path

import numpy as np
import torch
from make_photos import make_photos
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)


def random_rotation(image, degrees=15):
    """Turn by up to so many degrees."""
    return image.rotate(random.uniform(-degrees, degrees), Image.Resampling.BILINEAR)


def random_resized_crop(image, size):
    """Cut a random piece of 30 to 100% of the area and scale it."""
    side = int(min(image.size) * random.uniform(0.3, 1.0) ** 0.5)
    left = random.randint(0, image.width - side)
    top = random.randint(0, image.height - side)
    return image.resize((size, size), Image.Resampling.BICUBIC, (left, top, left + side, top + side))


def colour_jitter(pixels, strength=0.4):
    """Change brightness, contrast and saturation, each by up to the given fraction."""
    brightness, contrast, saturation = (1 + random.uniform(-strength, strength) for _ in range(3))
    pixels = pixels * brightness
    pixels = (pixels - pixels.mean()) * contrast + pixels.mean()
    grey = pixels @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
    return np.clip(grey[..., None] + (pixels - grey[..., None]) * saturation, 0.0, 1.0)


def read_photo(path, latency_s):
    """Read a photograph from a drive that answers after some milliseconds."""
    time.sleep(latency_s)
    with Image.open(path) as file:
        return file.convert("RGB")


class Photos(Dataset):
    """Photographs in one folder per class."""

    def __init__(self, folder, size, latency_s, train):
        self.classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
        files = [
            (path, label) for label, name in enumerate(self.classes) for path in sorted((folder / name).glob("*.jpg"))
        ]
        self.files = [entry for number, entry in enumerate(files) if (number % 10 == 9) != train]
        self.size, self.latency_s, self.train = size, latency_s, train

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path, label = self.files[index]
        image = read_photo(path, self.latency_s)
        if self.train:
            image = random_rotation(random_resized_crop(image, self.size))
            if random.random() < 0.5:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            pixels = colour_jitter(np.asarray(image, dtype=np.float32) / 255)
        else:
            pixels = np.asarray(image.resize((self.size, self.size)), dtype=np.float32) / 255
        pixels = (pixels - MEAN) / STD
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy()), label


def block(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


def make_model(classes):
    return nn.Sequential(
        block(3, 16),
        block(16, 32),
        block(32, 64),
        block(64, 128),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, classes),
    )


@torch.no_grad()
def accuracy(model, loader, device):
    model.eval()
    right = sum((model(images.to(device)).argmax(1).cpu() == labels).sum().item() for images, labels in loader)
    model.train()
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, help="folder of photographs; made when not given")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=64, help="side of the network's input, in pixels")
    parser.add_argument("--latency-ms", type=float, default=5.0, help="of each read, as of a network drive")
    parser.add_argument("--workers", type=int, default=0, help="worker processes of the loader")
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()

    torch.set_num_threads(1)  # the network is small: more threads would only wait for each other
    torch.manual_seed(0)
    random.seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    folder = make_photos(args.data)
    train, test = (Photos(folder, args.size, args.latency_ms / 1000, train) for train in (True, False))
    loader = DataLoader(train, args.batch_size, shuffle=True, num_workers=args.workers, drop_last=True)
    test_loader = DataLoader(test, args.batch_size, num_workers=args.workers)

    model = make_model(len(train.classes)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss()

    for epoch in range(args.epochs):
        begin, losses = time.perf_counter(), []
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        score = accuracy(model, test_loader, device)
        took = time.perf_counter() - begin
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.3f}, right {score:.0%}, {took:.1f} s", flush=True)


if __name__ == "__main__":
    main()
