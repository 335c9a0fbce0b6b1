"""Larger batches: is the noise of gradients measured right, what follows from it, and does an injected size train?"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.tune.search.batch_size import (
    BatchSize,
    BatchStudy,
    fastest_candidate,
    learning_rate_factor,
    noise_scale,
    progress,
    read_windows,
)

SIZES = st.integers(1, 1 << 20)


def windows(truth: float, batch: int, count: int, dimensions: int = 2000) -> list[tuple[float, float]]:
    """What gradients with a noise scale of `truth` samples give: G of length 1, the trace of S is `truth`."""
    random = np.random.default_rng(0)
    signal = np.full(dimensions, 1 / math.sqrt(dimensions))
    spread = math.sqrt(truth / batch / dimensions)
    found = []
    for _ in range(count):
        gradients = signal + spread * random.standard_normal((4, dimensions))
        found.append((float((gradients**2).sum(axis=1).mean()), float((gradients.mean(axis=0) ** 2).sum())))
    return found


@pytest.mark.parametrize("truth", [10.0, 100.0, 3000.0])
def test_the_noise_scale_is_found(truth):
    found = noise_scale(windows(truth, 32, 60), 32)
    assert found.low <= truth <= found.high
    assert found.value == pytest.approx(truth, rel=0.2)
    assert found.count == 60


def test_gradients_that_are_all_noise_have_an_infinite_scale():
    found = noise_scale([(4.0, 0.99), (4.0, 1.0)] * 8, 32)
    assert found.value == math.inf


def test_few_or_broken_windows_say_nothing():
    assert noise_scale([(2.0, 1.0)] * 5, 32) is None
    assert noise_scale([(math.nan, 1.0)] * 50, 32) is None


@given(noise=st.floats(0, 1e9), before=SIZES, after=SIZES)
def test_a_step_makes_no_more_progress_than_its_samples(noise, before, after):
    made = progress(noise, before, after)
    low, high = sorted((1.0, after / before))
    assert low * 0.999 <= made <= high * 1.001
    assert progress(noise, after, before) == pytest.approx(1 / made)


def test_progress_at_the_ends():
    assert progress(0.0, 32, 1024) == 1.0
    assert progress(math.inf, 32, 1024) == 32.0


def test_the_rate_follows_by_the_optimizers_rule():
    assert learning_rate_factor("SGD", 4.0) == 4.0
    assert learning_rate_factor("AdamW", 4.0) == 2.0


def sizes(*steps_s: float | None, noise: float) -> BatchStudy:
    made = [
        BatchSize(samples=32 << i, progress=progress(noise, 32, 32 << i), learning_rate=1.0, step_s=step_s)
        for i, step_s in enumerate(steps_s)
    ]
    return BatchStudy(noise=None, why="", rule="", sizes=made)


def test_the_size_that_is_soonest_at_the_loss_is_proposed_not_the_one_that_is_fastest_a_sample():
    found = sizes(0.010, 0.011, 0.018, 0.032, noise=64.0)
    assert found.fastest.samples == 256
    assert found.soonest.samples == 64
    assert fastest_candidate(found).recipe["loader"] == {"batch_size": 64}


def test_nothing_is_proposed_where_more_samples_only_take_longer():
    assert fastest_candidate(sizes(0.010, 0.012, 0.016, noise=0.0)) is None


def test_a_size_that_did_not_run_is_neither_largest_nor_proposed():
    found = sizes(0.010, 0.011, None, noise=1e6)
    assert found.largest.samples == 64


LOADERS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(96, 4), torch.arange(96) % 3)
train, test = DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, batch_size=8)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = {schedule}
for x, y in train:
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    print(len(x), round(optimizer.param_groups[0]["lr"], 9))
print([len(x) for x, _ in test][:2], len(train))
"""


@pytest.mark.parametrize(
    "schedule, rates",
    [
        ("torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)", [0.4 * 0.5**i for i in range(1, 4)]),
        ("torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.4, total_steps=12, anneal_strategy='linear')", None),
    ],
)
def test_batch_and_rate_take_hold_and_evaluation_stays(ran, schedule, rates):
    source = LOADERS.format(schedule=schedule)
    changed = ran(source, {"loader": {"batch_size": 32}, "optimizer": {"lr_factor": 4.0}})
    assert changed.code == 0, changed.err
    *steps, last = changed.out.splitlines()
    assert last == "[8, 8] 3"
    assert [int(line.split()[0]) for line in steps] == [32, 32, 32]
    before = [float(line.split()[1]) for line in ran(source).out.splitlines()[:3]]
    assert [float(line.split()[1]) for line in steps] == pytest.approx(rates or [4 * rate for rate in before])
    assert set(changed.held) >= {"loader.batch_size", "optimizer.lr_factor"}


def test_a_loader_that_does_not_shuffle_is_left_alone(ran):
    source = LOADERS.format(schedule="torch.optim.lr_scheduler.ConstantLR(optimizer)").replace(", shuffle=True", "")
    changed = ran(source, {"loader": {"batch_size": 32}})
    assert changed.refused == {
        "loader.batch_size": "no loader shuffles, so it is unknown which loader supplies the training data"
    }


def test_windows_of_a_program(ran, monkeypatch, tmp_path):
    """A linear model on noise: its gradients are known to be noisy, and are written at the end of a trial."""
    monkeypatch.setenv("PACELINE_NOISE", "1")
    source = """
    import torch
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for _ in range(40):
        optimizer.zero_grad()
        model(torch.randn(16, 8)).pow(2).mean().backward()
        optimizer.step()
    """
    assert ran(source, {}).code == 0
    found, optimizers = read_windows(tmp_path / "run")
    assert (len(found), optimizers) == (10, 1)
    assert all(mean < single for single, mean in found)
    assert 0 < noise_scale(found, 16).value < 1000
    assert json.dumps(found)
