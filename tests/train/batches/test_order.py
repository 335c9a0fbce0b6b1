"""Does a `DataLoader` go on where a checkpoint left it, and in later epochs too? On ranks: `test_ranks.py`."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset, WeightedRandomSampler

from paceline.core.errors import UsageError
from paceline.train import Engine

NUMBERS = torch.arange(22.0)


class Backwards(Sampler):
    """Of a user's own."""

    def __iter__(self):
        return iter(range(21, -1, -1))

    def __len__(self):
        return 22


def plain(numbers=NUMBERS, **options):
    return DataLoader(TensorDataset(numbers), 4, **{"shuffle": True, **options})


def with_generator():
    return plain(generator=torch.Generator().manual_seed(3))


def weighted():
    return plain(shuffle=False, sampler=WeightedRandomSampler(NUMBERS + 1, 22))


def by_worker():
    return plain(num_workers=1)


def in_order():
    return plain(shuffle=False)


class Run:
    """Steps that draw random numbers, as dropout does."""

    def __init__(self, make, state=None):
        torch.manual_seed(5 if state is None else 99)
        self.engine = Engine()
        net = nn.Sequential(nn.Dropout(0.5), nn.Linear(1, 1))
        self.engine.setup(net, lambda m: torch.optim.SGD(m.parameters(), lr=1e-4), loss=nn.functional.mse_loss)
        if state is not None:
            self.engine.load(state)
        self.loader = self.engine.loader(make())
        self.seen = []

    def train(self, batches, save_after=0, folder=None):
        for (numbers,) in batches:
            self.engine.train_batch(numbers[:, None], numbers[:, None])
            self.seen.append((numbers.tolist(), self.engine.loss()))
            self.engine.step()
            if len(self.seen) == save_after:
                self.engine.save(folder)


@pytest.mark.parametrize("make", [plain, with_generator, weighted, by_worker, in_order])
@pytest.mark.parametrize("steps", [4, 6])
def test_the_rest_of_the_epoch_and_the_next_ones_are_the_same(make, steps, tmp_path):
    """Losses too: dropout goes on as it would have. Saved in the middle and with the last batch; gone on with twice."""
    whole = Run(make)
    for _ in range(3):
        whole.train(whole.loader, steps, tmp_path / "one")
    again = Run(make, tmp_path / "one")
    again.train(again.loader)
    again.engine.save(tmp_path / "two")  # between epochs
    twice = Run(make, tmp_path / "two")
    twice.train(twice.loader, 2, tmp_path / "three")
    third = Run(make, tmp_path / "three")
    third.train(third.loader)
    third.train(third.loader)
    assert again.seen == whole.seen[steps:6]
    assert twice.seen == whole.seen[6:12]
    assert third.seen == whole.seen[8:18]


def test_what_cannot_say_where_it_was_is_refused_in_the_middle_only(tmp_path):
    def own():
        return plain(shuffle=False, sampler=Backwards())

    run = Run(own)
    run.train(run.loader)
    run.engine.save(tmp_path / "end")
    run.train(islice(run.loader, 2))
    run.engine.save(tmp_path / "middle")
    assert len(list(Run(own, tmp_path / "end").loader)) == 6
    with pytest.raises(
        UsageError, match="after 2 batches of an epoch, and Backwards cannot save its position: save after"
    ):
        Run(own, tmp_path / "middle")


def test_another_data_set_is_refused_in_the_middle(tmp_path):
    run = Run(plain)
    run.train(islice(run.loader, 2))
    run.engine.save(tmp_path)
    with pytest.raises(
        UsageError, match="epoch of 6 batches and 22 samples, but this loader has 5 batches and 20 samples"
    ):
        Run(lambda: plain(NUMBERS[:20]), tmp_path)
