"""Digit classifier, validated often."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make(count, seed):
    g = torch.Generator().manual_seed(seed)
    glyphs = torch.rand(10, 16, 16, generator=torch.Generator().manual_seed(99))
    labels = torch.randint(0, 10, (count,), generator=g)
    return TensorDataset((glyphs[labels] + 0.9 * torch.randn(count, 16, 16, generator=g)).unsqueeze(1), labels)


@torch.no_grad()
def validate(model, loader):
    model.eval()
    correct = total = 0
    for images, labels in loader:
        correct += (model(images).argmax(1) == labels).sum().item()
        total += len(labels)
    model.train()
    return correct / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=72)
    parser.add_argument("--validate-every", type=int, default=8)
    parser.add_argument("--validation-size", type=int, default=1600)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train_images, train_labels = make(64 * args.steps, 0).tensors
    val_loader = DataLoader(make(args.validation_size, 1), batch_size=100)
    model = nn.Sequential(
        nn.Conv2d(1, 48, 3), nn.ReLU(), nn.Conv2d(48, 48, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48 * 144, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for step, rows in enumerate(torch.randperm(len(train_labels)).split(64), 1):
        images, labels = train_images[rows], train_labels[rows]
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if args.validate_every and step % args.validate_every == 0:
            print(f"step {step} loss {loss.item():.3f} accuracy {validate(model, val_loader):.3f}")


if __name__ == "__main__":
    main()
