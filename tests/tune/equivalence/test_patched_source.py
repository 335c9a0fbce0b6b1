"""A patch is run before it is offered: one that trains otherwise than the recipe is found."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.core.recipe import Recipe
from paceline.tune.equivalence.patched_source import check_patch, largest_equivalent_patch, without
from paceline.tune.patches.model import Patch
from paceline.tune.patches.patch import patched
from paceline.tune.patches.source.sources import sources_of
from paceline.tune.trials.isolation import isolation_for

SOURCE = """
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        return torch.full((4,), float(index)), index % 3

if __name__ == "__main__":
    torch.manual_seed(7)
    loader = DataLoader(Numbers(), batch_size=4, shuffle=True, num_workers=1)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(100):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""
RECIPE = {"loader": {"num_workers": 2, "persistent_workers": True}}


@pytest.fixture
def patch(tmp_path: Path) -> Patch:
    (tmp_path / "train.py").write_text(SOURCE)
    if not (found := isolation_for(tmp_path / "trials", tmp_path, allows_network=False)).by_kernel:
        pytest.skip(found.why_not)
    return patched(sources_of(["python", "train.py"], tmp_path, {}), RECIPE)


def test_a_patch_that_trains_as_the_recipe_does_is_known_as_such(patch, tmp_path):
    check = check_patch([sys.executable, "train.py"], patch, RECIPE, tmp_path / "trials", tmp_path)
    assert not check.differs and "trains as the recipe does" in check.text
    assert (tmp_path / "train.py").read_text() == SOURCE


def test_a_patch_that_shuffles_otherwise_from_the_second_epoch_on_is_found(patch, tmp_path):
    """Kept workers without the number that new ones would draw."""
    (source,) = patch.after
    plain = replace(source, text=source.text.replace("KeptWorkers(Numbers()", "DataLoader(Numbers()"))
    assert plain.text != source.text
    wrong = replace(patch, after=[plain])
    check = check_patch([sys.executable, "train.py"], wrong, RECIPE, tmp_path / "trials", tmp_path)
    assert check.differs and "inputs differ" in check.text


@pytest.mark.parametrize(
    "old, new, words",
    [
        ("num_workers=2", "num_workers=1", "no effect: the training loader has num_workers=1 instead of 2"),
        ("shuffle=True", "shuffle=True, shuffel=1", "the patched program fails, and under the recipe it does not"),
    ],
    ids=["no-effect", "broken"],
)
def test_a_patch_without_effect_and_a_broken_one_are_found(patch, tmp_path, old, new, words):
    (source,) = patch.after
    wrong = replace(patch, after=[replace(source, text=source.text.replace(old, new))])
    check = check_patch([sys.executable, "train.py"], wrong, RECIPE, tmp_path / "trials", tmp_path)
    assert check.differs
    assert words in check.text


def test_a_setting_that_makes_the_patch_train_otherwise_is_left_to_the_recipe(patch, tmp_path):
    def make(recipe: Recipe) -> Patch:
        found = patched(patch.before, recipe)
        plain = [
            replace(one, text=one.text.replace("KeptWorkers(Numbers()", "DataLoader(Numbers()")) for one in found.after
        ]
        return replace(found, after=plain)

    found, check = largest_equivalent_patch([sys.executable, "train.py"], make, RECIPE, tmp_path / "trials", tmp_path)
    assert not check.differs
    assert "num_workers=2)" in found.after[0].text
    (stays,) = found.stays
    assert stays.setting == "loader.persistent_workers"
    assert "inputs differ" in stays.why


def test_what_a_patch_leaves_to_the_recipe_is_left_out():
    recipe = {"loader": {"threads": 2, "num_workers": 0}, "memory": {"micro_batches": 2}}
    assert without(recipe, ["loader.threads", "memory.micro_batches"]) == {"loader": {"num_workers": 0}}
