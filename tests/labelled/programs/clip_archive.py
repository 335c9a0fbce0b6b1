"""Train on clips cut out of one large archive file that does not fit the page cache."""

import argparse
import mmap
import os
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Archive(Dataset):
    """Fixed-size records, read straight from the disk so that they push nothing else out of memory."""

    def __init__(self, path, record, records, clips):
        self.path, self.record, self.records, self.clips = path, record, records, clips
        self.fd = self.buffer = None

    def open(self):
        """Each worker has its own descriptor and its own aligned buffer."""
        try:
            self.fd = os.open(self.path, os.O_RDONLY | os.O_DIRECT)
        except OSError:  # this file system cannot
            self.fd = os.open(self.path, os.O_RDONLY)
        self.buffer = mmap.mmap(-1, self.record)

    def __len__(self):
        return self.clips

    def __getitem__(self, i):
        if self.fd is None:
            self.open()
        os.preadv(self.fd, [self.buffer], (i * 37 % self.records) * self.record)
        frames = np.frombuffer(self.buffer, np.uint8)
        thumbnail = frames[:: self.record // 512][:512].astype(np.float32) / 255
        return torch.from_numpy(thumbnail), torch.tensor([thumbnail[:64].mean()])


def write_archive(path, record, records):
    noise = np.random.default_rng(0).integers(0, 256, record, dtype=np.uint8)
    with open(path, "wb") as f:
        for r in range(records):
            f.write(((noise >> 1) + r % 120).astype(np.uint8).tobytes())
        f.flush()
        os.fsync(f.fileno())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clips", type=int, default=880)
    parser.add_argument("--record-mb", type=float, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    record = int(args.record_mb * 256) * 4096
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "clips.bin")
        write_archive(path, record, 40)
        loader = DataLoader(Archive(path, record, 40, args.clips), batch_size=8, num_workers=args.workers)
        model = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for clips, target in loader:
            optimizer.zero_grad()
            loss = (model(clips) - target).pow(2).mean()
            loss.backward()
            optimizer.step()
        print("loss", loss.item())


if __name__ == "__main__":
    main()
