"""Speaker model on resampled voices; filtering happens in the loader with torch."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Voices(Dataset):
    """Each voice is split by a bank of windowed sinc kernels, smoothed, then averaged."""

    def __init__(self, count, samples=1000):
        self.count, self.samples = count, samples
        taps = torch.arange(-32, 33).float()
        self.bank = torch.stack([torch.sinc(taps * c) * torch.hann_window(65) for c in torch.linspace(0.05, 0.9, 12)])
        self.smooth = torch.eye(12).unsqueeze(2) * torch.tensor([0.1, 0.2, 0.4, 0.2, 0.1])

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        speaker = i % 4
        voice = torch.randn(1, 1, self.samples, generator=g)
        voice = (0.5 + speaker) * voice
        bands = nn.functional.conv1d(voice, self.bank.unsqueeze(1))[0]
        for _ in range(30):
            bands = nn.functional.conv1d(bands.unsqueeze(0), self.smooth, padding=2)[0]
        return bands.square().unfold(1, 100, 100).mean(2), speaker


THREADS = 16


def start_worker(worker_id):
    torch.set_num_threads(THREADS)


def main():
    global THREADS
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--loader-threads", type=int, default=16)
    parser.add_argument("--voices", type=int, default=560)
    args = parser.parse_args()
    THREADS = args.loader_threads
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(Voices(args.voices), batch_size=8, num_workers=args.workers, worker_init_fn=start_worker)
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = None
    for step, (bands, speaker) in enumerate(loader):
        logits = model(bands.log1p())
        optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.02)
        loss = nn.functional.cross_entropy(logits, speaker)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main()
