"""A folder of pictures through torch's DataLoader, as most programs read it; what makes a sample is the peer's."""

import os
from pathlib import Path

import torch
from _peer import BATCH, pictures
from torch.utils.data import DataLoader, Dataset


class Folder(Dataset):
    def __init__(self, folder, sample):
        self.files = [(str(path), label) for path, label in pictures(folder)]
        self.sample = sample

    def __len__(self):
        return len(self.files)

    def __getitem__(self, number):
        path, label = self.files[number]
        return self.sample(path), label


def prepare(source, dest):
    os.symlink(source.resolve(), dest)


def batches_of(sample):
    def batches(dest, workers):
        torch.set_num_threads(1)
        return DataLoader(Folder(Path(dest), sample), BATCH, shuffle=True, num_workers=workers)

    return batches
