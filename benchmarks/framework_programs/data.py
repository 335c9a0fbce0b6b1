"""Small data sets that need no download: sequences whose sum decides their class."""

from __future__ import annotations

import os

import torch

DEVICE = os.environ.get("DEVICE", "cpu")  # `cuda` where there is one


class Sums(torch.utils.data.Dataset):
    """Integers below 64 in rows of 16; the class says whether their sum is above the expected one."""

    def __init__(self, count: int = 512) -> None:
        generator = torch.Generator().manual_seed(0)
        self.rows = torch.randint(0, 64, (count, 16), generator=generator)
        self.labels = (self.rows.sum(1) > 504).long()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.labels[index]}
