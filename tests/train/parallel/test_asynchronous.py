"""Do ranks that do not wait for each other train one model, with no update older than was allowed?"""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.train.launching import on_ranks

from paceline.core.errors import UsageError
from paceline.train.parallel.asynchronous import RankState, Staleness, admitted
from paceline.train.recipe import made

TRAINS = """
import json, sys, time
from pathlib import Path
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset
from paceline.core.errors import UsageError
from paceline.train import Engine

torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
RANK = torch.distributed.get_rank()
INPUTS = torch.randn(48, 4, generator=torch.Generator().manual_seed(0))
TARGET = torch.stack([INPUTS.sum(1), INPUTS.mean(1), torch.arange(48.0)], dim=1)  # the last one is the number
out, found = Path(sys.argv[1]), {}


def net():
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def loss_of(output, target):
    return mse_loss(output, target[:, :2])


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)


def plain(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def begun(most, optimizer=plain, schedule=None, **options):
    engine = Engine({"layout": "dp=3", "asynchronous": {"max_staleness": most, **options}})
    model, _ = engine.setup(net(), optimizer, loss=loss_of, schedule=schedule)
    return engine, model


def of_all(value):
    every = [None] * 3
    torch.distributed.all_gather_object(every, value)
    return every


def values(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def part(number):
    return slice(12 * number + 4 * RANK, 12 * number + 4 * RANK + 4)


def one_slow_rank():
    schedules = []

    def schedule(optimizer):
        schedules.append(torch.optim.lr_scheduler.ExponentialLR(optimizer, 1.0))
        return schedules[0]

    engine, model = begun(4, schedule=schedule)
    loader = engine.loader(DataLoader(TensorDataset(INPUTS, TARGET), 6, shuffle=True))
    numbers, losses = [], []
    for epoch in range(2):
        numbers.append([])
        for inputs, target in loader:
            engine.train_batch(inputs, target)
            time.sleep(0.05 if RANK == 2 else 0.002)
            losses.append(engine.loss())
            engine.step()
            numbers[-1] += target[:, 2].tolist()
    engine.meet()
    ages = engine.staleness
    found["one slow rank"] = {
        "numbers": of_all(numbers),
        "losses": of_all(losses)[0],
        "ages": of_all({"updates": ages.updates, "most": ages.most, "steps": engine.steps}),
        "scheduled": of_all(schedules[0].last_epoch),
        "values": of_all(values(model)),
    }
    engine.close()


def together():
    '''All read, all step, all meet: a step of the whole batch; a checkpoint in the middle goes on.'''
    engine, model = begun(2, sgd)
    by_hand = net()
    updates = sgd(by_hand)
    for number in range(4):
        if number == 2:
            engine.save(out / "state")
            engine.close()
            engine, model = begun(2, sgd)
            engine.load(out / "state")
        engine.train_batch(INPUTS[part(number)], TARGET[part(number)])
        torch.distributed.barrier()
        engine.step()
        engine.meet()
        whole = slice(12 * number, 12 * number + 12)
        loss_of(by_hand(INPUTS[whole]), TARGET[whole]).backward()
        updates.step()
        updates.zero_grad()
    found["together"] = [values(model), values(by_hand), engine.steps]
    engine.close()


def update(model, number, rank):
    '''Of a step by hand from the values that a model has.'''
    inputs, target = INPUTS[12 * number + 4 * rank :][:4], TARGET[12 * number + 4 * rank :][:4]
    model.zero_grad()
    loss_of(model(inputs), target).backward()
    return [-0.1 * p.grad for p in model.parameters()]


def add(model, change, weight):
    with torch.no_grad():
        for value, by in zip(model.parameters(), change):
            value.add_(by, alpha=weight)


def one_in_the_middle(damping):
    '''Rank 1 has read before rank 0's steps and gives its update after the fourth, for which three are allowed.'''
    engine, model = begun(3, damping=damping)
    if RANK == 1:
        engine.train_batch(INPUTS[part(0)], TARGET[part(0)])
    torch.distributed.barrier()
    if RANK == 0:
        for number in range(3):
            engine.train_batch(INPUTS[part(number)], TARGET[part(number)])
            engine.step()
        engine.train_batch(INPUTS[part(3)], TARGET[part(3)])
    torch.distributed.barrier()
    if RANK == 0:
        engine.step()
    if RANK == 1:
        time.sleep(0.1)  # for the fourth, if nothing held it back
        engine.step()
    engine.meet()
    by_hand = net()
    old = update(by_hand, 0, 1)
    for number in range(4):
        add(by_hand, update(by_hand, number, 0), 1 / 3)
    add(by_hand, old, 1 / 3 / (3 if damping else 1))
    ages = [each.ages for each in of_all(engine.staleness)]
    found[f"in the middle, {damping}"] = [values(model), values(by_hand), ages]
    engine.close()


def apart():
    engine, _ = begun(1)
    try:
        engine.save(out / "other") if RANK == 1 else engine.close()
    except UsageError as error:
        found["apart"] = str(error)


one_slow_rank()
together()
one_in_the_middle(True)
one_in_the_middle(False)
apart()
if RANK == 0:
    (out / "found.json").write_text(json.dumps(found))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("asynchronous")
    (folder / "train.py").write_text(TRAINS)
    ran = on_ranks(3, folder / "train.py", folder, timeout_s=120)
    assert ran.returncode == 0, ran.stderr[:4000]
    return json.loads((folder / "found.json").read_text())


def test_a_slow_rank_takes_fewer_parts_and_each_sample_comes_once(found):
    """All 24 parts of an epoch of 8 batches are taken, by whoever is there."""
    each = found["one slow rank"]
    for epoch in range(2):
        seen = [number for rank in each["numbers"] for number in rank[epoch]]
        assert sorted(seen) == list(range(48))
    taken = [one["updates"] for one in each["ages"]]
    assert taken == [one["steps"] for one in each["ages"]]
    assert sum(taken) == 48
    assert taken[2] < min(taken[:2])
    assert each["scheduled"][2] > taken[2]  # by the mean of all ranks' steps, 16 at the end
    assert max(each["scheduled"]) <= 16
    assert max(one["most"] for one in each["ages"]) <= 4
    assert each["values"][0] == each["values"][1] == each["values"][2]
    assert sum(each["losses"][-3:]) < sum(each["losses"][:3])


def test_updates_that_have_read_the_same_are_a_step_of_the_whole_batch(found):
    values, by_hand, steps = found["together"]
    assert values == pytest.approx(by_hand, abs=1e-6)
    assert steps == 4


@pytest.mark.parametrize("damping", [True, False])
def test_an_old_update_counts_less_and_the_next_waits_for_it(found, damping):
    values, by_hand, ages = found[f"in the middle, {damping}"]
    assert values == pytest.approx(by_hand, abs=1e-6)
    assert ages == [{"0": 4}, {"3": 1}, {}]


def test_ranks_that_meet_for_different_things_are_told(found):
    assert "ranks call save() and close() of the engine at the same time" in found["apart"]


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 4), st.integers(1, 4), st.integers(0, 10**6))
def test_no_update_gets_too_old_and_nobody_waits_forever(ranks, most, seed):
    """Played with random speeds: after 12 steps of each rank all updates went, none older than allowed."""
    draw, none = random.Random(seed), -1
    slow = [draw.choice([1, 1, 5, 20]) for _ in range(ranks)]
    left, read, done = [12] * ranks, [none] * ranks, [False] * ranks
    went = [[] for _ in range(ranks)]  # rounds of the updates of each rank
    rounds = idle = 0
    while any(left) or any(done):
        for rank in range(ranks):
            if read[rank] == none and left[rank]:
                read[rank] = rounds
            if read[rank] != none and not done[rank] and draw.random() < 1 / slow[rank]:
                done[rank] = True
                left[rank] -= 1
        bounds = [own[-most] if len(own) >= most else none for own in went]
        going = admitted([RankState(*each, none) for each in zip(read, done, bounds)])
        for rank in going:
            age = max(sum(other > read[rank] for other in went[q]) for q in range(ranks) if q != rank)
            assert age <= most
        rounds += bool(going)
        for rank in going:
            went[rank].append(rounds)
            read[rank], done[rank] = none, False
        idle = 0 if going else idle + 1
        assert idle < 1000


def test_ages_are_summed_up():
    assert (Staleness(ages={0: 3, 1: 1, 6: 1}, waited_s=0.0).updates, Staleness(ages={}, waited_s=0.0).most) == (
        5,
        None,
    )
    assert (Staleness(ages={0: 3, 1: 1, 6: 1}, waited_s=0.0).median, Staleness(ages={}, waited_s=0.0).median) == (
        0,
        None,
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"layout": "dp=2,tp=2", "asynchronous": {"max_staleness": 2}}, "use a layout with dp only"),
        ({"layout": "shard=2", "asynchronous": {"max_staleness": 2}}, "use a layout with dp only"),
        ({"asynchronous": {"max_staleness": 2}}, "use a layout with dp only"),
        (
            {"layout": "dp=2", "asynchronous": {"max_staleness": 0}},
            "from 1 on. To train without stale gradients, leave out .asynchronous.",
        ),
        ({"layout": "dp=2", "asynchronous": {"damping": 2}}, "true or false"),
        ({"layout": "dp=2", "asynchronous": {"max_staleness": 2}, "local": {"every": 2}}, "choose one"),
        (
            {"layout": "dp=2", "asynchronous": {"max_staleness": 2}, "ddp": {"comm_hook": "fp16"}},
            "exchange parameters instead of gradients",
        ),
    ],
)
def test_what_is_wrong_is_named(content, says):
    with pytest.raises(UsageError, match=says):
        made(content)
