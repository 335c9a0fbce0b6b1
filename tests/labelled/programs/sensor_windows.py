"""Predict wear of a machine from windows of sensor recordings, one small file per second."""

import argparse
import os
import tempfile

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

READINGS = 256


class Windows(Dataset):
    """A window is `span` consecutive files, or one piece of the joined file."""

    def __init__(self, folder, files, span, windows, joined):
        self.folder, self.files, self.span, self.windows, self.joined = folder, files, span, windows, joined

    def __len__(self):
        return self.windows

    def read(self, name, start=0, seconds=1):
        fd = os.open(os.path.join(self.folder, name), os.O_RDONLY)
        data = os.pread(fd, seconds * READINGS * 4, start * READINGS * 4)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
        return np.frombuffer(data, np.float32).reshape(seconds, READINGS)

    def __getitem__(self, i):
        start = i * 53 % (self.files - self.span)
        if self.joined:
            window = self.read("joined", start, self.span)
        else:
            window = np.concatenate([self.read(f"{s:06d}.bin") for s in range(start, start + self.span)])
        return torch.from_numpy(window.mean(1)), torch.tensor([start / self.files], dtype=torch.float32)


def record(folder, files):
    rng = np.random.default_rng(0)
    joined = open(os.path.join(folder, "joined"), "wb")
    for second in range(files):
        reading = rng.normal(second / files, 1, READINGS).astype(np.float32)
        with open(os.path.join(folder, f"{second:06d}.bin"), "wb") as f:
            f.write(reading.tobytes())
        joined.write(reading.tobytes())
    joined.close()
    os.sync()


def train(args, folder):
    record(folder, args.files)
    windows = Windows(folder, args.files, args.span, args.windows, args.joined)
    loader = DataLoader(windows, batch_size=8, num_workers=args.workers)
    model = torch.nn.Sequential(torch.nn.Linear(args.span, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, (window, wear) in enumerate(loader):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(window), wear)
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--files", type=int, default=1500)
    parser.add_argument("--span", type=int, default=96)
    parser.add_argument("--windows", type=int, default=800)
    parser.add_argument("--joined", action="store_true")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        train(parser.parse_args(), scratch)
