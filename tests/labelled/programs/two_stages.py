"""Two trainings in one process: first an autoencoder, then a classifier on its codes."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Spectra(Dataset):
    def __init__(self, count):
        self.seeds = list(range(count))

    def __len__(self):
        return len(self.seeds)

    def __getitem__(self, index):
        rng = np.random.default_rng(self.seeds[index])
        wave = rng.standard_normal(16384).cumsum()
        power = np.abs(np.fft.rfft(wave * np.hanning(16384))) ** 2
        bands = np.log1p(power[1:8193].reshape(64, 128).mean(1))
        order = np.sort(wave)[::256]
        return torch.tensor(np.concatenate([bands, order]), dtype=torch.float32), index % 5


class Trainer:
    def __init__(self, model, loss, lr):
        self.model, self.loss = model, loss
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def fit(self, loader, epochs, target):
        for epoch in range(epochs):
            for x, label in loader:
                value = self.loss(self.model(x), target(x, label))
                self.optimizer.zero_grad()
                value.backward()
                self.optimizer.step()
            print(type(self.model).__name__, epoch, f"{value.item():.3f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Spectra(1920), batch_size=24, shuffle=True, num_workers=args.workers)
    coder, decoder = nn.Linear(128, 16), nn.Linear(16, 128)
    Trainer(nn.Sequential(coder, nn.Tanh(), decoder), nn.MSELoss(), 1e-3).fit(loader, 2, lambda x, _: x)
    classifier = nn.Sequential(coder, nn.Tanh(), nn.Linear(16, 5))
    Trainer(classifier, nn.CrossEntropyLoss(), 1e-2).fit(loader, 2, lambda _, label: label)


if __name__ == "__main__":
    main()
