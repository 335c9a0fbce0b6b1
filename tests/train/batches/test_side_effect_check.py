"""The engine refuses a dataset in which a sample depends on previously read samples, and accepts other datasets."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tests.train.launching import on_ranks
from tests.train.unmodified import remembers
from torch.utils.data import DataLoader

from paceline.core.errors import UsageError
from paceline.core.layout import parse
from paceline.train.batches.loaders import SideEffectCheck
from paceline.train.batches.order import RankBatchSampler

REMEMBER = [way for way in remembers.WAYS if way is not remembers.in_an_image_cache]
PROGRAM = """
import sys
from argparse import ArgumentParser
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from paceline.train import Engine
from paceline.train.recipe import add_arguments


class Counts(Dataset):
    count = 0
    def __len__(self):
        return 16
    def __getitem__(self, place):
        self.count += 1
        return torch.full((4,), float(place + self.count)), torch.zeros(2)


parser = ArgumentParser()
add_arguments(parser)
with Engine(parser.parse_args()) as engine:
    engine.setup(nn.Linear(4, 2), lambda m: torch.optim.SGD(m.parameters(), 0.001), loss=nn.functional.mse_loss)
    for inputs, target in engine.loader(DataLoader(Counts(), 8)):
        engine.train_batch(inputs, target)
        engine.step()
    if engine.is_first:
        print("trained")
"""


@pytest.mark.parametrize("checked", ["true", "false"])
def test_the_check_can_be_left_out(tmp_path, checked):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "recipe.toml").write_text(f"[checks]\nsamples = {checked}\n")
    given = ["--layout", "dp=2", "--recipe", tmp_path / "recipe.toml"]
    done = on_ranks(2, tmp_path / "program.py", *given, timeout_s=90)
    assert (done.returncode == 0, done.stdout) == ((False, "") if checked == "true" else (True, "trained\n"))
    assert ("reading a sample changes Counts.count" in done.stderr) == (checked == "true")


def read(data, layout="dp=2", workers=0, batches=4) -> int:
    """Read batches with the check, and return the number of batches."""
    order = [list(range(place, place + 8)) for place in range(0, 48, 8)]
    world = SimpleNamespace(layout=parse(layout), sample_part=0)
    loader = DataLoader(data, batch_sampler=RankBatchSampler(enumerate(order), world, 1), num_workers=workers)
    check = SideEffectCheck(loader, world)
    iterator = iter(loader)
    for _ in range(batches):
        with check.checked_read():
            next(iterator)
    return batches


@pytest.mark.parametrize("way", REMEMBER, ids=lambda way: way.__name__)
def test_each_kind_of_memory_is_refused_by_name(way, monkeypatch):
    monkeypatch.setenv("READ_SAMPLES", "0")
    data = remembers.Remembers(way, **remembers.WAYS[way]())
    with pytest.raises(UsageError, match="reading a sample changes .*, and later samples depend on it. With dp=2"):
        read(data)


@pytest.mark.parametrize("way", [remembers.in_an_image_cache, remembers.noisy], ids=lambda way: way.__name__)
def test_a_cache_and_random_numbers_are_no_memory(way):
    assert read(remembers.Remembers(way, **remembers.WAYS.get(way, dict)())) == 4


def noted(data, row, place):
    data.place, data.row = place, row * 2
    return data.row


def test_attributes_that_are_set_anew_for_each_sample_are_no_memory():
    assert read(remembers.Remembers(noted, place=0)) == 4


@pytest.mark.parametrize(("layout", "workers"), [("pp=2", 0), ("dp=2", 2)])
def test_nothing_is_checked_where_all_samples_are_those_of_one_process(layout, workers):
    assert read(remembers.Remembers(remembers.last_number, last=None), layout, workers) == 4
