"""Regress lesion size from stored 3-D volumes (already decoded, one array in memory)."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Volumes(Dataset):
    def __init__(self, count=48, side=80):
        rng = np.random.default_rng(5)
        self.sizes = rng.uniform(0, 1, count).astype(np.float32)
        noise = rng.random((side, side, side), dtype=np.float32)
        self.volumes = [noise + s for s in self.sizes]

    def __len__(self):
        return 20 * len(self.volumes)

    def __getitem__(self, i):
        i %= len(self.volumes)
        return {"volume": self.volumes[i], "size": self.sizes[i]}


def keep_as_list(samples):
    """Volumes may differ in shape between scanners, so they are not stacked here."""
    return samples


def train(workers, batch_size, max_steps):
    loader = DataLoader(Volumes(), batch_size, shuffle=True, num_workers=workers, collate_fn=keep_as_list)
    model = nn.Sequential(nn.Flatten(), nn.Linear(10**3, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002)
    for step, samples in enumerate(loader):
        if step == max_steps:
            break
        volumes = torch.stack([torch.from_numpy(s["volume"][::8, ::8, ::8].copy()) for s in samples])
        sizes = torch.tensor([s["size"] for s in samples])
        loss = nn.functional.mse_loss(model(volumes).squeeze(1), sizes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"{step:3d} {loss.item():.4f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--batch-size", type=int, default=8)
    ap.add_argument("--max-steps", type=int, default=64)
    ns = ap.parse_args()
    torch.set_num_threads(1)
    train(ns.workers, ns.batch_size, ns.max_steps)
