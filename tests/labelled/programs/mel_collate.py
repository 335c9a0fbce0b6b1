"""The collate function turns raw waves into spectrograms, in the training process."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Waves(Dataset):
    def __init__(self, count):
        self.waves = np.random.default_rng(0).standard_normal((count, 32000)).astype(np.float32)

    def __len__(self):
        return len(self.waves)

    def __getitem__(self, index):
        return self.waves[index], index % 6


def spectrograms(samples):
    frames = []
    for wave, _ in samples:
        pieces = np.lib.stride_tricks.sliding_window_view(wave, 256)[::32]
        frames.append(np.log1p(np.abs(np.fft.rfft(pieces * np.hanning(256), axis=1)))[:, :64].mean(0))
    return torch.tensor(np.stack(frames), dtype=torch.float32), torch.tensor([label for _, label in samples])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Waves(1280), batch_size=16, collate_fn=spectrograms, num_workers=args.workers)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
