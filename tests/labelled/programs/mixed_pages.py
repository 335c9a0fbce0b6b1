"""Page classifier; most pages are at hand, some lie on a slower shelf."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pages(Dataset):
    def __init__(self, pages, far_every, far_seconds):
        self.pages, self.far_every, self.far_seconds = pages, far_every, far_seconds
        self.prototypes = torch.randn(5, 400, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return self.pages

    def __getitem__(self, i):
        far = self.far_every and i % self.far_every == self.far_every // 2
        time.sleep(self.far_seconds if far else 0.001)
        kind = i % 5
        return self.prototypes[kind] + 3 * torch.randn(400, generator=torch.Generator().manual_seed(i)), kind


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--pages", type=int, default=960)
    parser.add_argument("--far-every", type=int, default=160)
    parser.add_argument("--far-seconds", type=float, default=0.35)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(400, 1400), nn.ReLU(), nn.Linear(1400, 1400), nn.ReLU(), nn.Linear(1400, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pages = DataLoader(Pages(args.pages, args.far_every, args.far_seconds), batch_size=8, num_workers=args.workers)
    for step, (page, kind) in enumerate(pages):
        loss = nn.functional.cross_entropy(model(page), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            print(f"[{step}] {loss.item():.3f}")
