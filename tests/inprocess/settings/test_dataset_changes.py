"""Programs that change their dataset while they train: samples follow the dataset, or a setting is given up."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.inprocess.settings.cache import checked_share
from paceline.inprocess.settings.dataset_state import changed, state_of

CHANGES = """
import torch
from torch.utils.data import DataLoader, Dataset, Subset

class Numbers(Dataset):
    def __init__(self):
        self.epoch, self.size, self.weights = 0, 1, [0.0] * 2000
    def __len__(self):
        return 48
    def __getitem__(self, index):
        return index + 100 * self.epoch + 1000 * self.size + self.weights[index]

if __name__ == "__main__":
    dataset = Numbers()
    loader = DataLoader(Subset(dataset, list(range(48))), batch_size=4{more})
    step = 0
    for epoch in range(4):
        for batch in loader:
            print(batch.tolist())
            step += 1
            {at_a_step}
        {at_an_epoch}
"""
MORE_WORKERS = {"loader": {"num_workers": 2, "persistent_workers": True}}
SET_EPOCH = CHANGES.format(more="", at_a_step="pass", at_an_epoch="dataset.epoch = epoch + 1")
CURRICULUM = CHANGES.format(more="", at_a_step="dataset.size = 1 + (step > 20)", at_an_epoch="pass")
HARD_EXAMPLES = CHANGES.format(
    more=", num_workers=1", at_a_step="dataset.weights[step % 48] += 0.5", at_an_epoch="pass"
)


def test_kept_workers_are_started_anew_after_the_program_changed_its_dataset(ran):
    bare, changed_ = ran(SET_EPOCH), ran(SET_EPOCH, MORE_WORKERS)
    assert (changed_.code, changed_.out) == (0, bare.out), changed_.err
    assert not changed_.refused


@pytest.mark.parametrize(
    "source, recipe, key, names",
    [
        (CURRICULUM, MORE_WORKERS, "loader.num_workers", "`dataset.size`"),
        (HARD_EXAMPLES, {"loader": {"num_workers": 0, "threads": 2}}, "loader.threads", "`dataset.weights`"),
        (SET_EPOCH, {"loader": {"cache": True}}, "loader.cache", "`dataset.epoch`"),
    ],
    ids=["size", "weights", "cache"],
)
def test_a_setting_is_given_up_where_the_dataset_changes_at_another_time_than_samples(ran, source, recipe, key, names):
    assert names in ran(source, recipe).refused[key]


def test_a_dataset_that_loading_changes_itself_is_not_taken_for_one_that_the_program_changes(ran):
    source = CHANGES.format(more="", at_a_step="pass", at_an_epoch="pass").replace(
        "return index", "self.seen = getattr(self, 'seen', 0) + 1; return index"
    )
    for recipe in (MORE_WORKERS, {"loader": {"num_workers": 0, "threads": 2}}, {"loader": {"cache": True}}):
        assert not ran(source, recipe).refused


EVALUATED = CHANGES.format(more="", at_a_step="pass", at_an_epoch="evaluate()").replace(
    "    step = 0",
    """    held_out = DataLoader(dataset, batch_size=4)

    @torch.no_grad()
    def evaluate():
        for batch in held_out:
            dataset.size = dataset.size  # as it was
            dataset.weights[0] += 1.0

    step = 0""",
)


def test_an_evaluation_that_loads_as_before_is_not_followed(ran):
    """Evaluation loads its samples itself, so what changes meanwhile is seen as it was without the recipe."""
    found = ran(EVALUATED, {"loader": {"num_workers": 2}})
    assert not found.refused, found.refused
    assert found.code == 0, found.err


def test_values_that_keep_what_was_asked_of_them_do_not_change():
    class Files:
        def __init__(self):
            self.files = [(Path("a") / str(number), number) for number in range(10)]

        def __getitem__(self, index):
            return str(self.files[index][0]), hash(self.files[index][0])

    files = Files()
    before = state_of(files)
    files[3]
    assert changed(before, state_of(files)) == []
    files.files[3] = (Path("b"), 3)
    assert changed(before, state_of(files)) == ["files"]


SCALE = 1


class Nested:
    def __init__(self):
        self.options = {"crop": (3, 4), "names": ["a"] * 3000}
        self.inner = type("Inner", (), {"__getitem__": lambda self, index: index})()
        self.inner.size = 8

    def __getitem__(self, index):
        return index * SCALE


@pytest.mark.parametrize(
    "change, name",
    [
        (lambda one: one.options.update(crop=(3, 5)), "options"),
        (lambda one: one.options["names"].__setitem__(1234, "b"), "options"),
        (lambda one: setattr(one.inner, "size", 9), "inner.size"),
        (lambda one: setattr(one, "new", 1), "new"),
    ],
)
def test_a_change_of_a_dataset_is_named(change, name):
    one = Nested()
    before = state_of(one)
    assert changed(before, state_of(one)) == []
    change(one)
    assert changed(before, state_of(one)) == [name]


def test_a_global_variable_that_loading_reads_is_part_of_the_state(monkeypatch):
    before = state_of(Nested())
    monkeypatch.setitem(globals(), "SCALE", 2)
    assert changed(before, state_of(Nested())) == ["SCALE (a global variable)"]


@pytest.mark.parametrize("epoch, kept, share", [(1, 1000, 0), (2, 6400, 1 / 64), (3, 6400, 1 / 32), (9, 6400, 1 / 8)])
def test_more_of_the_kept_samples_are_made_again_in_each_epoch(epoch, kept, share):
    assert checked_share(epoch, kept) == pytest.approx(share)


def test_changed_labels_of_few_samples_are_found():
    """2% of 2,000 labels: the chance that no changed one is among those made again in two epochs is below 15%."""
    missed = 1.0
    for epoch in (2, 3):
        missed *= 0.98 ** (checked_share(epoch, 2000) * 2000)
    assert missed < 0.15
