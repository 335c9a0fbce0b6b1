"""A loader with `max_tokens=`: lengths from columns, arrays and functions, any ranks, and a state at each batch."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from torch.utils.data import Dataset, Subset

from paceline.core.errors import UsageError
from paceline.data import FileDataset, Loader, Mix, ShardedDataset, Writer

MOST, COUNT = 120, 90
LENGTHS = np.random.default_rng(0).integers(1, 60, COUNT)


class Texts(Dataset):
    def __len__(self):
        return COUNT

    def __getitem__(self, number):
        return number, list(range(LENGTHS[number]))


def token_count(sample):
    return len(sample[1])


def ids(made):
    return [number for number, _ in made]


def keys(made):
    return [int(one["id"]) for one in made]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("budgets")
    with Writer(made / "shards", shard_mb=0.005) as writer:
        for number, length in enumerate(LENGTHS.tolist()):
            writer.write({"id": number, "n_tokens": length, "text": "a" * length})
    lines = [f'{{"id": {n}, "n_tokens": {length}, "none": null}}\n' for n, length in enumerate(LENGTHS.tolist())]
    (made / "a.jsonl").write_text("".join(lines))
    return made


KINDS = {
    "shards, column": lambda folder: (ShardedDataset(folder / "shards"), "n_tokens", keys),
    "shards, function": lambda folder: (ShardedDataset(folder / "shards"), lambda one: len(one["text"]), keys),
    "files, column": lambda folder: (FileDataset(folder / "a.jsonl"), "n_tokens", keys),
    "dataset, array": lambda folder: (Texts(), LENGTHS, ids),
    "dataset, function": lambda folder: (Texts(), token_count, ids),
}


def loader_of(folder, kind, **settings):
    data, length, collate = KINDS[kind](folder)
    return Loader(
        data, max_tokens=MOST, length=length, collate_fn=collate, **{"shuffle": True, "threads": 2, **settings}
    )


@pytest.mark.parametrize("kind", KINDS)
def test_each_sample_comes_once_in_batches_within_the_budget(folder, kind):
    loader = loader_of(folder, kind, rank=0, world=1)
    for _ in range(2):
        length = len(loader)
        batches = list(loader)
        assert sorted(number for batch in batches for number in batch) == list(range(COUNT))
        assert all(len(batch) * LENGTHS[batch].max() <= MOST for batch in batches)
        assert len(batches) == length < COUNT / 2
    assert batches != list(loader_of(folder, kind, rank=0, world=1))


@pytest.mark.parametrize("kind", ["shards, column", "dataset, array"])
@pytest.mark.parametrize("ends", ["even", "drop", "pad"])
def test_a_state_goes_on_at_its_batch_on_any_number_of_ranks(folder, kind, ends):
    whole = list(loader_of(folder, kind, rank=0, world=1))
    first = [loader_of(folder, kind, rank=rank, world=2, ends=ends) for rank in range(2)]
    begun = [[batch for _, batch in zip(range(3), iter(loader))] for loader in first]
    states = [loader.state_dict() for loader in first]
    assert states[0] == states[1]
    again = [loader_of(folder, kind, rank=rank, world=3, ends=ends) for rank in range(3)]
    rest = []
    for loader in again:
        loader.load_state_dict(states[0])
        rest.append(list(loader))
    dealt = [batch for step in [*zip(*begun, strict=True), *zip(*rest, strict=True)] for batch in step]
    full = 6 + (len(whole) - 6) // 3 * 3
    assert dealt[:full] == whole[:full]
    left = [number for batch in whole[full:] for number in batch]
    assert left  # so that each way to end is seen
    after = sorted(number for batch in dealt[full:] for number in batch)
    repeated = [number for batch in whole[: 3 - (len(whole) - full)] for number in batch]
    assert after == sorted({"even": left, "drop": [], "pad": left + repeated}[ends])


def test_a_loader_that_is_sent_to_another_process_goes_on(folder):
    loader = loader_of(folder, "dataset, function", rank=0, world=1)
    begun = [batch for _, batch in zip(range(2), iter(loader))]
    assert begun + list(pickle.loads(pickle.dumps(loader))) == list(
        loader_of(folder, "dataset, array", rank=0, world=1)
    )


def test_subsets_and_mixes(folder):
    data = ShardedDataset(folder / "shards")
    half = Loader(Subset(data, range(0, COUNT, 2)), max_tokens=MOST, length="n_tokens", columns=["id"], shuffle=True)
    assert sorted(int(one) for batch in half for one in batch["id"]) == list(range(0, COUNT, 2))
    mix = Mix([folder / "shards", Subset(data, range(10))])
    both = Loader(mix, max_tokens=MOST, length="n_tokens", columns=["id", "n_tokens"], shuffle=True)
    batches = list(both)
    assert sum(len(batch["id"]) for batch in batches) == len(mix)
    assert all(len(batch["id"]) * batch["n_tokens"].max() <= MOST for batch in batches)


@pytest.mark.parametrize(
    "change, said",
    [
        ({"length": None}, "belong together"),
        ({"max_tokens": None}, "belong together"),
        ({"batch_size": 8}, "in place of batch_size"),
        ({"max_tokens": 20}, "not from 1 to max_tokens=20"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"length": "text"}, "there are: id, n_tokens"),
        ({"length": LENGTHS[1:]}, "each of the 90 samples"),
        ({"length": LENGTHS / 2}, "whole numbers of tokens"),
        ({"world": 100, "rank": 0}, "use fewer ranks"),
    ],
)
def test_what_does_not_fit_is_refused(folder, change, said):
    with pytest.raises(UsageError, match=said):
        Loader(ShardedDataset(folder / "shards"), **{"max_tokens": MOST, "length": "n_tokens", **change})


@pytest.mark.parametrize("change", [{"max_tokens": MOST + 1}, {"length": np.roll(LENGTHS, 1)}])
def test_a_state_with_another_budget_is_refused(change):
    settings = {"max_tokens": MOST, "length": LENGTHS}
    state = Loader(Texts(), **settings).state_dict()
    with pytest.raises(UsageError, match="max_tokens= or length="):
        Loader(Texts(), **{**settings, **change}).load_state_dict(state)
