"""Tell bird calls apart from short recordings."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SPECIES = 6


class SongClips(Dataset):
    """Half-second clips, turned into log spectrograms with a little noise and time masking."""

    def __init__(self, clips=320, samples=16000, seed=0):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, SPECIES, clips)
        t = np.arange(samples) / 32000
        self.waves = [
            np.sin(2 * np.pi * (900 + 700 * c) * t + rng.uniform(0, 6)).astype(np.float32) for c in self.labels
        ]
        self.rng = rng

    def __len__(self):
        return len(self.waves)

    def __getitem__(self, i):
        wave = self.waves[i] + self.rng.normal(0, 0.7, len(self.waves[i])).astype(np.float32)
        frames = np.lib.stride_tricks.sliding_window_view(wave, 512)[::128]
        power = np.abs(np.fft.rfft(frames * np.hanning(512), axis=1)) ** 2
        image = np.log1p(power[:, :128]).astype(np.float32)
        start = self.rng.integers(0, len(image) - 8)
        image[start : start + 8] = 0
        return torch.from_numpy(image), int(self.labels[i])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(
        SongClips(), args.batch_size, shuffle=True, num_workers=args.workers, persistent_workers=args.workers > 0
    )
    model = nn.Sequential(
        nn.Conv1d(128, 64, 5), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(64, SPECIES)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        for spectrograms, species in loader:
            optimizer.zero_grad()
            loss = criterion(model(spectrograms.transpose(1, 2)), species)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
