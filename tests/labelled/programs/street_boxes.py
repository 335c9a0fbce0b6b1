"""Detection-style training: every sample brings its own tensors, batches are tuples."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Streets(Dataset):
    def __init__(self, count):
        self.count = count
        self.base = torch.rand(3, 40, 40, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        brightness = (i * 13 % 50) / 50
        target = {
            "boxes": torch.tensor([[1.0, 1.0, 9.0, 9.0], [4.0, 4.0, 20.0, 20.0]]),
            "labels": torch.tensor([1, 2]),
            "area": torch.tensor([64.0, 256.0]),
            "image_id": torch.tensor([i]),
            "brightness": torch.tensor([brightness]),
        }
        return self.base * brightness, target


def collate(batch):
    return tuple(zip(*batch))


def train_one_epoch(model, optimizer, loader):
    for step, (images, targets) in enumerate(loader):
        images = torch.stack(images)
        wanted = torch.stack([t["brightness"] for t in targets])
        loss = nn.functional.mse_loss(model(images), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--batch", type=int, default=12)
    p.add_argument("--images", type=int, default=1280)
    a = p.parse_args()
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Conv2d(3, 8, 5, stride=3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 1))
    sgd = torch.optim.SGD(net.parameters(), lr=0.03)
    train_one_epoch(net, sgd, DataLoader(Streets(a.images), a.batch, num_workers=a.workers, collate_fn=collate))
