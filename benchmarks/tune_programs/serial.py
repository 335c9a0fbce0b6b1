"""Signals are made in the training process itself, because num_workers is 0 unless one says otherwise."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Signals(Dataset):
    """Spectra of noisy tones; the class is the tone."""

    def __len__(self):
        return 200_000

    def __getitem__(self, index):
        draw = np.random.default_rng(index)
        tone = index % 8
        wave = np.sin(np.arange(4096) * (tone + 1) / 40) + draw.normal(size=4096)
        spectrum = np.abs(np.fft.rfft(wave))[:512]
        return spectrum.astype(np.float32) / 64, tone


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = DataLoader(Signals(), batch_size=32, shuffle=True)
    for step, (spectra, tones) in enumerate(loader, 1):
        loss = nn.functional.cross_entropy(model(spectra), tones)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item()}", flush=True)
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
