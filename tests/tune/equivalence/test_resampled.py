"""Are samples, their order and training the same once the random draws of samples are fixed?"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tune.search.test_runner import workshop_of

from paceline.core.recipe import BASELINE
from paceline.explain.model import LoaderBreakdown
from paceline.explain.words import safety_of_worker_draws, safety_of_workers
from paceline.tune.equivalence.outputs import Check, WorkerStates, check_worker_draws

PROGRAM = """
import os, random
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

KIND = "{kind}"
module_generator = np.random.default_rng(0)

class Samples(Dataset):
    def __init__(self):
        self.generator = np.random.default_rng(0) if KIND == "own generator" else None
        self.fetched = 0
    def __len__(self):
        return 80
    def __getitem__(self, index):
        self.fetched += 1
        moved = {{
            "python": lambda: random.random(),
            "numpy": lambda: np.random.normal(),
            "torch": lambda: torch.randn(1).item(),
            "own generator": lambda: self.generator.random() if self.generator else 0,
            "module generator": lambda: module_generator.random(),
            "remembers": lambda: self.fetched + random.random(),
        }}.get(KIND, random.random)()
        return torch.full((4,), index + float(moved)), index % 3

class Stream(IterableDataset):
    def __iter__(self):
        for index in range(80):
            yield torch.full((4,), index + random.random()), index % 3

def mixed(samples):
    x, y = torch.utils.data.default_collate(samples)
    return (x + torch.rand(1), y) if KIND == "collate" else (x, y)

def same_seed(worker):
    random.seed(1)

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(7)
    random.seed(7)
    data = Stream() if KIND == "stream" else Samples()
    kinds = dict(worker_init_fn=same_seed if KIND == "same seed" else None)
    loader = DataLoader(data, batch_size=4, shuffle=KIND != "stream" or None, collate_fn=mixed, **kinds)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(1000):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""
TWO_WORKERS = {"loader": {"num_workers": 2, "persistent_workers": True}}


def failed(found: list[Check]) -> set[str]:
    return {check.name for check in found if not check.passed}


def proven(folder: Path, kind: str, workers: int = 2) -> list[Check]:
    workshop = workshop_of(folder, PROGRAM.format(kind=kind))
    recipe = TWO_WORKERS if workers > 1 else {"loader": {"num_workers": 1}}
    return workshop.check_equivalence(recipe, ["resampled"], BASELINE)


@pytest.mark.parametrize("kind", ["python", "numpy", "torch", "collate"])
def test_draws_of_the_global_generators_can_be_fixed(tmp_path, kind):
    found = proven(tmp_path, kind)
    assert failed(found) == set()
    said = {check.name: check.text for check in found}
    assert "bitwise identical" in said["samples"]
    assert said["draws"] == "2 workers, each with its own random state"


def test_a_stream_moves_to_one_worker(tmp_path):
    assert failed(proven(tmp_path, "stream", workers=1)) == set()


@pytest.mark.parametrize(
    "kind, names",
    [
        ("own generator", {"samples"}),  # each worker draws from its own copy
        ("module generator", {"samples"}),
        ("remembers", {"samples"}),  # each worker counts for itself
        ("same seed", {"draws"}),  # all workers would draw the same numbers
    ],
)
def test_what_workers_would_change_beyond_the_draws_is_found(tmp_path, kind, names):
    assert failed(proven(tmp_path, kind)) >= names


def test_without_fixed_draws_other_workers_are_another_stream_of_samples(tmp_path):
    workshop = workshop_of(tmp_path, PROGRAM.format(kind="python"))
    assert "samples" in failed(workshop.check_equivalence(TWO_WORKERS, ["exact"], BASELINE))


def states(worker: int, *values: int) -> WorkerStates:
    return WorkerStates(worker=worker, states=values)


def test_equal_states_are_told_by_generator_and_worker():
    assert check_worker_draws([]) == []
    assert failed(check_worker_draws([states(0, 1, 2, 3), states(1, 4, 5, 6)])) == set()
    assert failed(check_worker_draws([states(0, 1, 2, 3), states(1, 4, 5, 3)])) == {"draws"}  # numpy alone
    assert failed(check_worker_draws([states(0, 1, 2, 3), states(0, 1, 2, 3)])) == set()  # one worker, in two epochs


@pytest.mark.parametrize(
    "draws, own, settings, workers, safety",
    [
        (False, False, {}, 2, "exact"),
        (True, False, {}, 2, "resampled"),
        (True, True, {}, 2, "semantic"),
        (False, False, {"iterable": True}, 2, "semantic"),
        (True, False, {"iterable": True}, 1, "resampled"),
    ],
)
def test_the_class_of_other_workers(draws, own, settings, workers, safety):
    known = dict.fromkeys(LoaderBreakdown.__dataclass_fields__, 0)
    loader = LoaderBreakdown(**{**known, "draws_random": draws, "own_generator": own, "settings": settings})
    assert safety_of_workers(loader, workers) == safety


def test_the_class_without_a_loader():
    assert safety_of_workers(None, 2) == safety_of_worker_draws(None) == "exact"
