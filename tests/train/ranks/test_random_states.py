"""Do ranks draw the same where they must, and other numbers where they must not: samples, batches, dropout?"""

from __future__ import annotations

import pytest
from tests.train.launching import results_of

PROGRAM = """
import json, random, sys
from pathlib import Path
import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from paceline.core.errors import UsageError
from paceline.train import Engine

OUT = Path(sys.argv[1])
CLASSES = 1000


class Windows(Dataset):
    '''Windows of a text that begin anywhere, and a number of each library.'''

    def __len__(self):
        return 16

    def __getitem__(self, index):
        begin = int(torch.randint(CLASSES, ())) + numpy.random.randint(CLASSES) + random.randrange(CLASSES)
        return torch.arange(begin, begin + 4)[None].repeat(2, 1).T.float(), torch.full((4,), begin)


class OfItsOwn(Windows):
    def __init__(self):
        self.drawn = numpy.random.default_rng()

    def __getitem__(self, index):
        begin = int(self.drawn.integers(CLASSES))
        return torch.full((4, 2), float(begin)), torch.full((4,), begin)


class Buckets:
    '''A batch sampler that shuffles by Python's random numbers, batch by batch.'''

    def __init__(self, drawn):
        self.drawn = drawn

    def __len__(self):
        return 4

    def __iter__(self):
        left = list(range(16))
        while left:
            yield [left.pop(self.drawn.randrange(len(left))) for _ in range(4)]


class Numbered(Windows):
    def __getitem__(self, index):
        random.random()
        return torch.full((4, 2), float(index)), torch.full((4,), index)


class Attention(nn.Module):
    def forward(self, x):
        kept = nn.functional.dropout(torch.ones(2000), 0.5, self.training)
        seen(SEEN, kept)
        return x + 0 * nn.functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0]


class Feed(nn.Module):
    def __init__(self):
        super().__init__()
        self.up_proj, self.drop, self.down_proj = nn.Linear(2, 2000), nn.Dropout(0.5), nn.Linear(2000, 2)
        self.drop.register_forward_hook(lambda _, __, out: seen(INSIDE, out))

    def forward(self, x):
        return self.down_proj(self.drop(self.up_proj(x)))


SEEN, INSIDE = [], []


def seen(where, out):
    if torch.is_grad_enabled():  # not in the comparison that cp makes first
        where.append((out != 0).flatten().tolist())


def of_all(found):
    every = [None, None]
    torch.distributed.all_gather_object(every, found)
    return every


def seeded(unlike=True):
    rank = torch.distributed.get_rank() if unlike else 0
    torch.manual_seed(7)
    random.seed(rank), numpy.random.seed(rank)


def engine_of(layout, **recipe):
    memory = {"micro_batches": 2 if "pp" in layout else 1, **recipe}
    engine = Engine({"layout": layout, "memory": memory, "checks": {"first_step": False}})  # its draws are counted
    parts = [Feed(), Feed()] if "pp" in layout else [Attention(), Attention(), Feed(), Feed(), nn.Linear(2, 1)]
    net = nn.Sequential(*parts)  # with pp the stages are alike
    engine.setup(net, lambda m: torch.optim.SGD(m.parameters(), lr=0.0), loss=lambda out, _: out.mean())
    return engine


def read(loader, epochs=2):
    return [[target[:, 0].tolist() for _, target in loader] for _ in range(epochs)]


def samples(layout, workers):
    seeded()
    alone = read(DataLoader(Windows(), 4, shuffle=True, num_workers=workers))
    seeded()
    engine = engine_of(layout)
    seeded()
    loader = engine.loader(DataLoader(Windows(), 4, shuffle=True, num_workers=workers))
    return {"all": of_all(read(loader)), "one": alone}


def order(drawn):
    seeded()
    loader = DataLoader(Numbered(), batch_sampler=Buckets(drawn), num_workers=0)
    return of_all(read(engine_of("dp=2").loader(loader)))


def refused(layout, loader):
    try:
        read(engine_of(layout).loader(loader))
    except UsageError as error:
        return str(error)


def masks(layout, **recipe):
    seeded()
    engine = engine_of(layout, **recipe)
    SEEN.clear(), INSIDE.clear()
    for _ in range(2):
        torch.rand(())
        engine.train_batch(torch.ones(4, 4, 2), torch.ones(4, 4))
    same = lambda kind: [one == other for one, other in zip(*of_all(kind))]
    state = of_all(torch.get_rng_state().tolist())
    own = len(set(map(str, INSIDE)))
    return {"seen": same(SEEN), "inside": same(INSIDE), "after": state[0] == state[1], "own": own}


torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
found = {layout: samples(layout, 0) for layout in ("cp=2", "pp=2", "tp=2", "dp=2")}
found["workers"] = samples("tp=2", 1)
found["order"] = order(random)
found["unlike"] = refused("dp=2", DataLoader(Numbered(), batch_sampler=Buckets(random.Random())))
found["of its own"] = {layout: refused(layout, DataLoader(OfItsOwn(), 4)) for layout in ("cp=2", "pp=2", "tp=2")}
found["masks"] = {layout: masks(layout) for layout in ("cp=2", "pp=2", "tp=2", "shard=2")}
found["masks"]["again"] = masks("tp=2", checkpoint_every=1)
if torch.distributed.get_rank() == 0:
    OUT.write_text(json.dumps(found))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return results_of(PROGRAM, 2, tmp_path_factory.mktemp("random"), timeout_s=120)


@pytest.mark.parametrize("layout", ["cp=2", "pp=2", "tp=2", "workers"])
def test_ranks_with_parts_of_a_model_see_the_samples_of_one_process(found, layout):
    """Samples draw by torch, NumPy and Python, which have other seeds on each rank."""
    first, second = found[layout]["all"]
    assert first == second == found[layout]["one"]


def test_ranks_with_other_samples_draw_other_numbers(found):
    first, second = found["dp=2"]["all"]
    seen = [[begin for epoch in rank for batch in epoch for begin in batch] for rank in (first, second)]
    assert len(seen[0]) == len(seen[1]) == 16
    assert not set(seen[0]) & set(seen[1])


def test_a_sampler_that_draws_by_python_gives_each_sample_once(found):
    for epoch in zip(*found["order"], strict=True):
        assert sorted(number for rank in epoch for batch in rank for number in batch) == list(range(16))


def test_ranks_whose_batches_differ_are_refused(found):
    assert "ranks got different batches: Buckets" in found["unlike"]
    for said in found["of its own"].values():
        assert "ranks that need the same samples got different ones" in said


@pytest.mark.parametrize("layout", ["cp=2", "pp=2"])
def test_dropout_differs_where_ranks_hold_other_parts(found, layout):
    """Outside the model they still draw the same."""
    masks = found["masks"][layout]
    assert masks["after"]
    assert masks["inside"] and not any(masks["inside"])


@pytest.mark.parametrize("how", ["tp=2", "again"])
def test_dropout_between_split_matrices_differs_and_is_the_same_elsewhere(found, how):
    masks = found["masks"][how]
    assert masks["after"]
    assert all(masks["seen"])
    assert masks["inside"] and not any(masks["inside"])
    assert masks["own"] == 4  # one for each block and step, computed again or not
