"""Several data sets mixed by weights: each in its own order, on any ranks, resumed anywhere."""

from __future__ import annotations

import pickle
from itertools import islice

import numpy as np
import pytest
import torch
from tests.data.loader.test_loader import Drawing, Numbers, by_number
from tests.data.making import converted
from torch.utils.data import Subset

from paceline.core.errors import UsageError
from paceline.data import Loader, Mix, RandomResizedCrop, ShardedDataset, TokenDataset, Writer
from paceline.data.convert.token_shards import write_tokens
from paceline.data.format.tokens import Text
from paceline.data.order.mixed import ROW

SIZES = (50, 21, 9)
WEIGHTS = [1, 2, 1]
STEP = 12  # samples of all ranks together


class Named(Numbers):
    """Samples that tell their data set, as a number of a thousand."""

    def __init__(self, which: int, count: int) -> None:
        super().__init__(count)
        self._which = which

    def __getitem__(self, number: int) -> int:
        return 1000 * self._which + number


class Letters:
    """A tokenizer whose tokens are numbers in the text."""

    name, vocabulary, end, cuts = "letters", 5000, 4999, False

    def ids(self, texts):
        return [[int(word) for word in text.split()] for text in texts]


def value_of(sample) -> int:
    return sample["x"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("data")
    for which, size in enumerate(SIZES):
        with Writer(made / f"shards{which}", shard_mb=0.02) as writer:
            for number in range(size):
                writer.write({"x": 1000 * which + number, "filling": bytes(1500)})
    return made


def datasets(kind: str, folder) -> list:
    if kind == "own":
        return [Named(which, size) for which, size in enumerate(SIZES)]
    shards = [ShardedDataset(folder / f"shards{which}") for which in range(len(SIZES))]
    if kind == "subset":
        return [shards[0], Subset(shards[1], [*range(20, 3, -1), 5]), Subset(shards[2], [8])]
    return shards


def loaders(data, world: int, **settings) -> list[Loader]:
    own = isinstance(data, Mix) and isinstance(data.datasets[0], Named) or isinstance(data, Named)
    settings = {"shuffle": True, "seed": 3, "threads": 0, **({} if own else {"transform": value_of}), **settings}
    return [Loader(data, STEP // world, rank=rank, world=world, **settings) for rank in range(world)]


def taken(ranks: list[Loader], steps: int | None = None) -> list[int]:
    """The samples of an epoch in the order in which all ranks together take them."""
    batches = [[batch.tolist() for batch in islice(loader, steps)] for loader in ranks]
    return [
        batch[place]
        for step in zip(*batches, strict=True)
        for place in range(STEP)
        for batch in step
        if place < len(batch)
    ]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("kind", ["shards", "subset", "own"])
def test_each_data_set_is_in_its_own_order_pass_after_pass_on_any_ranks(folder, kind, shuffle):
    sets = datasets(kind, folder)
    found = []
    for world in (1, 2, 3):
        ranks = loaders(Mix(sets, WEIGHTS), world, ends="pad", shuffle=shuffle)
        epochs = [taken(ranks)[: sum(map(len, sets))] for _ in range(3)]  # without what pads
        found.append([sample for epoch in epochs for sample in epoch])
    assert found[0] == found[1] == found[2]
    for which, one in enumerate(sets):
        own = [sample for sample in found[0] if sample // 1000 == which]
        alone = loaders(one, 1, shuffle=shuffle)[0]
        passes = [sample for _ in range(len(own) // len(one) + 1) for batch in alone for sample in batch.tolist()]
        assert own == passes[: len(own)]
        assert len(own) > len(one) or which == 0


@pytest.mark.parametrize("before, steps, after", [(1, 1, 2), (2, 3, 1), (3, 5, 4), (4, 6, 3)])
@pytest.mark.parametrize("kind", ["shards", "own"])
def test_resumed_on_other_ranks_the_samples_are_those_of_one_run(folder, kind, before, steps, after):
    mix = Mix(datasets(kind, folder), WEIGHTS)
    whole = loaders(mix, 1, ends="drop")
    epochs = [taken(whole) for _ in range(3)]
    first = loaders(mix, before, ends="drop")
    assert taken(first) + taken(first, steps) == epochs[0] + epochs[1][: steps * STEP]
    rest = loaders(pickle.loads(pickle.dumps(mix)), after, ends="drop")
    for loader in rest:
        loader.load_state_dict(first[0].state_dict())
    assert taken(rest) + taken(rest) == epochs[1][steps * STEP :] + epochs[2]


@pytest.mark.parametrize("weights", [[0.7, 0.3], [1, 1], [1, 999], [3, 1e-6], None])
def test_shares_are_those_of_the_weights_in_every_row(weights):
    sizes = [3000, 1500]
    mix = Mix([Named(0, 3000), Named(1, 1500)], weights)
    share = (weights or sizes)[1] / sum(weights or sizes)
    ids = np.concatenate([mix.order(None, 0, epoch).ids(np.arange(4500)) for epoch in range(2)])
    rows = (ids >= 3000)[: len(ids) // ROW * ROW].reshape(-1, ROW).sum(1)
    assert set(rows.tolist()) <= {int(np.floor(share * ROW)), int(np.ceil(share * ROW))}
    assert abs(rows.mean() - share * ROW) < 0.5


@pytest.mark.parametrize("how", [{"threads": 2}, {"threads": 0}])
def test_crops_of_mixed_shards_are_those_of_one_loader(tmp_path, how):
    sets = [converted(tmp_path / "a", 30), converted(tmp_path / "b", 20)]
    loader = Loader(Mix(sets, [1, 3]), 10, True, RandomResizedCrop(16), seed=1, **how)
    plain = Loader(Mix(sets, [1, 3]), 10, True, RandomResizedCrop(16), seed=1, threads=1)
    for (images, labels), (others, same) in zip(loader, plain, strict=True):
        assert torch.equal(images, others) and torch.equal(labels, same)
    assert len(loader) == 5
    assert loader.report().stages


def test_tokens_are_mixed(tmp_path):
    for which, size in enumerate(SIZES):
        words = " ".join(str(1000 * which + number) for number in range(4 * size))
        write_tokens(tmp_path / f"{which}", iter([[Text(words)]]), Letters())
    sets = [TokenDataset(tmp_path / f"{which}", length=4) for which in range(len(SIZES))]
    loader = Loader(Mix(sets, WEIGHTS), 10, True, seed=3)
    found = torch.cat([batch for _ in range(2) for batch in loader])
    assert found.shape == (2 * sum(SIZES), 5)
    for which, one in enumerate(sets):
        own = found[found[:, 0] // 1000 == which]
        alone = Loader(one, 10, True, seed=3)
        passes = torch.cat([batch for _ in range(len(own) // len(one) + 1) for batch in alone])
        assert torch.equal(own, passes[: len(own)])


def test_what_samples_draw_does_not_depend_on_who_makes_them():
    def mixed(**how):
        return by_number(Loader(Mix([Drawing(24), Subset(Drawing(24), [3])], [9, 1]), 5, True, seed=5, **how))

    assert mixed(threads=0) == mixed(processes=1) == mixed(processes=2)


def test_a_state_of_other_weights_or_data_sets_is_refused():
    state = Loader(Mix([Numbers(8), Numbers(4)], [1, 2]), 2).state_dict()
    Loader(Mix([Numbers(8), Numbers(4)], [1, 2]), 2).load_state_dict(state)
    for other in (Mix([Numbers(8), Numbers(4)], [1, 3]), Mix([Numbers(4), Numbers(8)], [1, 2])):
        with pytest.raises(UsageError, match="the state belongs to another data set"):
            Loader(other, 2).load_state_dict(state)


def wrong_columns(tmp_path) -> list:
    for name, sample in (("a", {"x": 1}), ("b", {"x": 1.5})):
        with Writer(tmp_path / name) as writer:
            writer.write(sample)
    return [tmp_path / "a", tmp_path / "b"]


def wrong_classes(tmp_path) -> list:
    for name, classes in (("a", ["cat"]), ("b", ["dog"])):
        with Writer(tmp_path / name, classes=classes) as writer:
            writer.write({"label": 0})
    return [tmp_path / "a", tmp_path / "b"]


def shards_and_own(tmp_path) -> list:
    return [wrong_columns(tmp_path)[0], Numbers(3)]


REFUSED = [
    (lambda _: [], None, "give one or more"),
    (lambda _: [Numbers(3), Numbers(0)], None, "data sets that have samples"),
    (lambda _: [Numbers(3)], [1, 2], "weights are .* for 1 data sets"),
    (lambda _: [Numbers(3), Numbers(3)], [1, 0], "a number above 0 for each"),
    (lambda _: [Numbers(3), Numbers(3)], [1, float("nan")], "a number above 0 for each"),
    (wrong_columns, None, r"has the column x \(int\), and in .* it is float"),
    (wrong_classes, None, "different classes; convert the second with --classes-from"),
    (shards_and_own, None, "data sets of one kind, and these are ShardedDataset, Numbers"),
]


@pytest.mark.parametrize("make, weights, said", REFUSED)
def test_what_cannot_be_mixed_is_refused(tmp_path, make, weights, said):
    with pytest.raises(UsageError, match=said):
        Loader(Mix(make(tmp_path), weights), 2)
