"""Batches of generators and of iterable data sets are those of one process, also after a resume within an epoch."""

from __future__ import annotations

import pytest
from tests.train.launching import results_of

from paceline.core.errors import UsageError
from paceline.train import Engine

PROGRAM = """
import os
import random
import numpy
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, IterableDataset
from tests.train.small_model import begin, finish, sgd, small_model
from paceline.core.errors import UsageError
from paceline.train import Engine

OUT = begin()
INPUTS = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))


def pair(indices):
    rows = INPUTS[torch.as_tensor(indices)]
    return rows, rows[:, :2] * 2


class Shuffled(IterableDataset):
    def __iter__(self):
        for index in torch.randperm(48).tolist():
            yield tuple(each[0] for each in pair([index]))


def by_torch():
    return (pair(torch.randint(60, (8,))) for _ in range(6))


def by_numpy():
    return (pair(numpy.random.randint(0, 60, 8)) for _ in range(6))


def by_python():
    return (pair([random.randrange(60) for _ in range(8)]) for _ in range(6))


def of_an_epoch():
    for indices in torch.randperm(48).split(8):
        yield pair(indices)


def of_an_own_generator():
    drawn = torch.Generator().manual_seed(3)
    return (pair(torch.randint(60, (8,), generator=drawn)) for _ in range(6))


def of_a_data_set():
    return DataLoader(Shuffled(), batch_size=8)


def of_workers():
    return DataLoader(Shuffled(), batch_size=8, num_workers=1)


def endless():
    while True:
        yield pair(torch.randint(60, (8,)))


MAKERS = (by_torch, by_numpy, by_python, of_an_epoch, of_an_own_generator, of_a_data_set, of_workers, endless)


def engine_of(layout):
    engine = Engine({"layout": layout, "memory": {"micro_batches": 2}} if layout else {"memory": {"micro_batches": 2}})
    engine.setup(small_model(), sgd, loss=mse_loss)
    return engine


def train(engine, batches, losses, steps, save=None):
    for inputs, target in engine.loader(batches):
        engine.train_batch(inputs, target)
        losses.append(engine.loss())
        engine.step()
        if engine.steps == save:
            engine.save(OUT.parent / "saved")
        if engine.steps == steps:
            break


def run(layout, make, save):
    torch.manual_seed(4), numpy.random.seed(4), random.seed(4)
    engine, losses = engine_of(layout), []
    train(engine, make(), losses, 6, save)
    train(engine, make(), losses, 10)
    if save:
        again, resumed = engine_of(layout), []
        again.load(OUT.parent / "saved")
        train(again, make(), resumed, 6)
        train(again, make(), resumed, 10)
        return losses, resumed
    return losses, None


def of_program(take, **checks):
    engine, losses = engine_of("dp=2") if not checks else Engine({"layout": "dp=2", "checks": checks}), []
    if checks:
        engine.setup(small_model(), sgd, loss=mse_loss)
    try:
        for _ in range(3):
            engine.train_batch(*take(engine))
            losses.append(engine.loss())
            engine.step()
    except UsageError as error:
        return str(error)
    return losses


def other_on_each_rank(engine):
    drawn = torch.Generator().manual_seed(int(os.environ["RANK"]))
    for _ in range(3):
        yield pair(torch.randint(60, (8,), generator=drawn))


def shorter_on_a_rank(engine):
    return (pair(range(8)) for _ in range(2 + int(os.environ["RANK"])))


def refused(batches):
    engine = engine_of("dp=2")
    try:
        train(engine, batches(engine), [], 10)
    except UsageError as error:
        return str(error)


RANKS, FOUND = int(os.environ["WORLD_SIZE"]), {}
if RANKS > 1:
    FOUND["random"] = of_program(lambda engine: pair(torch.randint(60, (8,))))
    FOUND["random, allowed"] = of_program(lambda engine: pair(torch.randint(60, (8,))), samples=False)
    FOUND["same"] = of_program(lambda engine: pair(range(8)))
    FOUND["of the rank"] = of_program(lambda run: [each.chunk(2)[run.world.sample_part] for each in pair(range(8))])
for make in MAKERS:
    for layout in ("dp=2", "shard=2", "pp=2") if RANKS > 1 else ("",):
        FOUND[f"{make.__name__} {layout}".strip()] = run(layout, make, 3 if layout in ("", "dp=2") else None)
if RANKS > 1:
    FOUND["other on each rank"] = refused(other_on_each_rank)
    FOUND["shorter on a rank"] = refused(shorter_on_a_rank)
finish(FOUND)
"""
MAKERS = ("by_torch", "by_numpy", "by_python", "of_an_epoch", "of_an_own_generator", "of_a_data_set", "of_workers")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    one, several = (results_of(PROGRAM, ranks, tmp_path_factory.mktemp("whole_batches")) for ranks in (1, 2))
    return {**one, **several}


@pytest.mark.parametrize("layout", ["dp=2", "shard=2", "pp=2"])
@pytest.mark.parametrize("make", [*MAKERS, "endless"])
def test_ranks_train_on_the_batches_of_one_process(found, make, layout):
    one, several = found[make][0], found[f"{make} {layout}"][0]
    assert len(one) == 10 and several == pytest.approx(one, rel=1e-4)


@pytest.mark.parametrize("layout", ["", " dp=2"])
@pytest.mark.parametrize("make", [*MAKERS, "endless"])
def test_a_resumed_run_continues_with_the_next_batch(found, make, layout):
    whole, resumed = found[f"{make}{layout}"]
    assert resumed == pytest.approx(whole[3:], rel=1e-5)


@pytest.mark.parametrize("case", ["other on each rank", "shorter on a rank"])
def test_a_generator_that_gives_ranks_other_batches_is_refused(found, case):
    assert "ranks read different batches from generator" in found[case]


def test_random_batches_of_the_training_loop_are_refused_unless_the_program_says_that_ranks_have_their_own(found):
    assert "no batch comes from engine.loader()" in found["random"]
    assert len(found["random, allowed"]) == 3


@pytest.mark.parametrize("case", ["same", "of the rank"])
def test_batches_of_the_training_loop_that_are_those_of_one_process_train(found, case):
    assert found["same"] == pytest.approx(found["of the rank"], rel=1e-4)
    assert len(found[case]) == 3


@pytest.mark.parametrize(
    ("loader", "says"),
    [([1, 2], r"not list; of a list of batches, pass a generator"), ("text", "not str"), ({1: 2}, "not dict")],
)
def test_other_objects_are_refused(loader, says):
    with pytest.raises(UsageError, match=says):
        Engine().loader(loader)
