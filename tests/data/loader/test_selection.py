"""Samples by number, and loaders of `Subset` and `random_split`: exactly these samples, in their order or mixed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.data.making import converted
from torch.utils.data import DataLoader, Subset, random_split

from paceline.core.errors import UsageError
from paceline.data import CenterCrop, Loader, ShardedDataset, TokenDataset, Writer
from paceline.data.convert.token_shards import write_tokens
from paceline.data.format.tokens import ByteTokenizer, Text
from paceline.data.order.order import SelectedOrder, Shuffle


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """90 samples that know their number, in several shards and many blocks."""
    made = tmp_path_factory.mktemp("selection") / "shards"
    with Writer(made, shard_mb=0.02) as writer:
        for number in range(90):
            writer.write({"n": number, "text": f"sample {number} " * 50})
    return made


def numbers_of(loader) -> list[int]:
    return [number for batch in loader for number in batch["n"].tolist()]


def test_a_sample_by_its_number(tmp_path):
    dataset = converted(tmp_path)
    loader = Loader(dataset, 1, transform=dict, collate_fn=list, threads=0)
    for number, ((expected,), sample) in enumerate(zip(loader, dataset, strict=True)):
        assert sample.keys() == expected.keys()
        assert np.array_equal(sample["image"], expected["image"]) and sample["label"] == expected["label"]
        assert dataset[number - len(dataset)]["label"] == sample["label"]
    assert dataset[np.int64(3)]["label"] == dataset[3]["label"]
    for wrong in (24, -25):
        with pytest.raises(IndexError, match="has 24 samples"):
            dataset[wrong]
    with pytest.raises(TypeError, match="Subset"):
        dataset[1:3]


def test_values_that_are_missing_are_none(tmp_path):
    with Writer(tmp_path / "shards") as writer:
        for number in range(20):
            writer.write({"n": number if number % 2 else None, "text": "a" if number % 3 else None})
    found = [(one["n"], one["text"]) for one in ShardedDataset(tmp_path / "shards")]
    assert found == [(n if n % 2 else None, "a" if n % 3 else None) for n in range(20)]


def test_a_dataloader_of_torch_gives_the_same(folder):
    found = numbers_of(DataLoader(ShardedDataset(folder), 7))
    assert found == list(range(90))


@pytest.mark.parametrize("threads", [0, 2])
def test_parts_of_random_split_have_all_samples_once(folder, threads):
    parts = random_split(ShardedDataset(folder), [0.8, 0.2], torch.Generator().manual_seed(1))
    loaders = [Loader(part, 8, shuffle=True, threads=threads) for part in parts]
    first, second = ([numbers_of(loader) for loader in loaders] for _ in range(2))
    assert [len(loader) for loader in loaders] == [9, 3]
    for part, one, other in zip(parts, first, second, strict=True):
        assert sorted(one) == sorted(other) == sorted(part.indices)
        assert one != other
    assert sorted(first[0] + first[1]) == list(range(90))


def test_without_shuffle_samples_come_as_they_are_given_and_as_often(folder):
    wanted = [88, 3, 3, 41, 0, 88, -1]
    assert numbers_of(Loader(Subset(ShardedDataset(folder), wanted), 2)) == [88, 3, 3, 41, 0, 88, 89]
    assert sorted(numbers_of(Loader(Subset(ShardedDataset(folder), wanted), 2, shuffle=True))) == sorted(
        [88, 3, 3, 41, 0, 88, 89]
    )


def test_a_subset_of_a_subset_and_of_any_kind_of_indices(folder):
    inner = Subset(ShardedDataset(folder), range(10, 90, 2))
    outer = Subset(inner, torch.tensor([5, 0, 39]))
    assert numbers_of(Loader(outer, 2)) == [20, 10, 88]
    for wrong, said in (([90], "sample 90"), ([1.5], "whole numbers"), ([], "no samples")):
        with pytest.raises(UsageError, match=said):
            Loader(Subset(ShardedDataset(folder), wrong), 2)


def test_a_class_of_the_users_own_stays_in_charge(folder):
    class Doubled(Subset):
        def __getitem__(self, number):
            return super().__getitem__(number)["n"] * 2

        __getitems__ = None

    loader = Loader(Doubled(ShardedDataset(folder), [4, 6]), 2, threads=0)
    assert next(iter(loader)).tolist() == [8, 12]


def test_ranks_share_a_subset_and_a_state_continues_it(folder):
    part = Subset(ShardedDataset(folder), range(5, 65))
    ranks = [Loader(part, 4, shuffle=True, rank=rank, world=2) for rank in range(2)]
    assert sorted(numbers_of(ranks[0]) + numbers_of(ranks[1])) == list(range(5, 65))
    before = Loader(part, 4, shuffle=True)
    taken = [number for _, batch in zip(range(5), before) for number in batch["n"].tolist()]
    after = Loader(part, 7, shuffle=True)
    after.load_state_dict(before.state_dict())
    assert sorted(taken + numbers_of(after)) == list(range(5, 65))
    other = Loader(Subset(ShardedDataset(folder), range(6, 66)), 4, shuffle=True)
    with pytest.raises(UsageError, match="another data set of the same size"):
        other.load_state_dict(before.state_dict())


@pytest.mark.parametrize("threads", [0, 2])
def test_a_bad_batch_is_replaced_by_samples_of_the_subset(folder, threads):
    """A sample of the other part would leak from training into validation."""

    def fails(sample):
        if sample["n"] < 20:
            raise ValueError("bad")
        return sample

    part = Subset(ShardedDataset(folder), [*range(8), *range(30, 38)])
    loader = Loader(part, 4, on_error="skip", threads=threads, transform=fails)
    found = numbers_of(loader)
    assert len(found) == 16 and set(found) <= set(range(30, 38))


def test_pictures_of_a_subset_are_those_of_the_whole(tmp_path):
    dataset = converted(tmp_path)
    whole = torch.cat([images for images, _ in Loader(dataset, 5, transform=CenterCrop(16))])
    for cache in (None, "ram"):
        loader = Loader(Subset(dataset, [20, 3, 11]), 2, transform=CenterCrop(16), decoded_cache=cache)
        for _ in range(2):
            assert torch.equal(torch.cat([images for images, _ in loader]), whole[[20, 3, 11]])


def test_windows_of_tokens(tmp_path):
    write_tokens(tmp_path / "tokens", iter([[Text("abcdefgh" * 40)]]), ByteTokenizer(), shard_tokens=100)
    dataset = TokenDataset(tmp_path / "tokens", 10)
    found = torch.cat(list(Loader(Subset(dataset, [7, 2]), 1)))
    assert np.array_equal(found.numpy(), np.stack([dataset[7], dataset[2]]))


def test_only_blocks_with_samples_are_read():
    order = SelectedOrder(np.arange(0, 1000, 10), np.array([995, 11, 12, 500]), Shuffle(seed=0, window=2), 0)
    assert sorted(order.ids(np.arange(4)).tolist()) == [11, 12, 500, 995]
    assert sorted(order.blocks(np.arange(4))) == [1, 50, 99]
