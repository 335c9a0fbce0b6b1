"""A run that was interrupted trains as without the interruption, for each way in which programs use loaders."""

from __future__ import annotations

import importlib.util
import itertools
import json

import pytest
import torch
from tests.train.launching import on_ranks

from paceline.core.errors import UsageError

PROGRAM = '''
import json, sys
from itertools import islice
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler
from paceline.data import Loader
from paceline.train import Engine

NUMBERS = torch.arange(24.0)
BATCHES, EPOCHS = 6, 4


def same_object(shared, options):
    """One loader, which engine.loader gets in each epoch."""
    loader = DataLoader(TensorDataset(NUMBERS), 4, generator=shared, **options)
    return lambda engine, epoch: engine.loader(loader)


def once(shared, options):
    """One loader, which engine.loader gets once."""
    loader, found = DataLoader(TensorDataset(NUMBERS), 4, generator=shared, **options), []

    def batches(engine, epoch):
        found[:] = found or [engine.loader(loader)]
        return found[0]
    return batches


def new_object(shared, options):
    """A loader for each epoch, which the program keeps in a variable."""
    held = []

    def batches(engine, epoch):
        held[:] = [DataLoader(TensorDataset(NUMBERS), 4, generator=shared, **options)]
        return engine.loader(held[0])
    return batches


def temporary(shared, options):
    """A loader for each epoch, without a variable."""
    return lambda engine, epoch: engine.loader(DataLoader(TensorDataset(NUMBERS), 4, generator=shared, **options))


def seed_of_epoch(shared, options):
    """A loader for each epoch, with a generator of its own."""
    return lambda engine, epoch: engine.loader(
        DataLoader(TensorDataset(NUMBERS), 4, generator=torch.Generator().manual_seed(epoch), **options)
    )


def ours(shared, options):
    """One loader of Paceline, whose epoch the program sets."""
    loader = Loader(TensorDataset(NUMBERS), 4, shuffle=True, seed=3, threads=0)

    def batches(engine, epoch):
        loader.set_epoch(epoch)
        return engine.loader(loader)
    return batches


def ours_new(shared, options):
    """A loader of Paceline for each epoch, whose epoch the program sets."""
    def batches(engine, epoch):
        loader = Loader(TensorDataset(NUMBERS), 4, shuffle=True, seed=3, threads=0)
        loader.set_epoch(epoch)
        return engine.loader(loader)
    return batches


WAYS = {each.__name__: each for each in (same_object, once, new_object, temporary, seed_of_epoch, ours, ours_new)}


def weighted():
    return dict(sampler=WeightedRandomSampler(NUMBERS + 1, 24))


class Stop(Exception):
    pass


def train(layout, way, shared, options, folder=None, save_at=None, load=False):
    """Return the samples and the loss of each step. Save after a number of steps, or with "end" after epoch 1."""
    torch.manual_seed(99 if load else 5)
    engine = Engine({"layout": layout})
    net = nn.Sequential(nn.Linear(1, 1))
    engine.setup(net, lambda m: torch.optim.SGD(m.parameters(), lr=1e-4), loss=nn.functional.mse_loss)
    batches = WAYS[way](torch.Generator().manual_seed(3) if shared else None, options)
    first, seen = engine.load(folder)["epoch"] if load else 0, []
    for epoch in range(first, EPOCHS):
        for (numbers,) in batches(engine, epoch):
            engine.train_batch(numbers[:, None], numbers[:, None])
            seen.append((numbers.tolist(), engine.loss()))
            engine.step()
            if engine.steps == save_at:
                engine.save(folder, extra={"epoch": epoch})
                return seen
        if save_at == "end" and epoch == 1:
            engine.save(folder, extra={"epoch": 2})
            return seen
    return seen


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    given, found = json.loads(Path(sys.argv[1]).read_text()), []
    for case in given:
        losses = [loss for _, loss in train("dp=2", **case)]
        found.append(losses)
    if torch.distributed.get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps(found))
    torch.distributed.destroy_process_group()
'''
DATA_LOADERS = ["same_object", "once", "new_object", "temporary", "seed_of_epoch"]
SAVES = [2, 6, 8, 12, 15, "end"]
SHUFFLED = {"shuffle": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("positions")
    (made / "train.py").write_text(PROGRAM)
    return made


@pytest.fixture(scope="module")
def program(folder):
    """The program, in this process."""
    spec = importlib.util.spec_from_file_location("train_by_positions", folder / "train.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def joined(program, way, shared, options, folder, save_at):
    """Train in two parts on one process."""
    begun = program.train("", way, shared, options, folder, save_at)
    return begun + program.train("", way, shared, options, folder, load=True)


@pytest.mark.parametrize("save_at", SAVES)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("way", DATA_LOADERS)
def test_one_process_goes_on_exactly(program, way, shared, save_at, tmp_path):
    whole = program.train("", way, shared, SHUFFLED)
    assert joined(program, way, shared, SHUFFLED, tmp_path, save_at) == whole


@pytest.mark.parametrize("way", ["same_object", "new_object", "temporary"])
@pytest.mark.parametrize("options", ["workers", "persistent", "weighted", "in order"])
def test_workers_and_other_samplers_go_on_exactly(program, way, options, tmp_path):
    made = {
        "workers": {**SHUFFLED, "num_workers": 1},
        "persistent": {**SHUFFLED, "num_workers": 1, "persistent_workers": True},
        "weighted": program.weighted(),
        "in order": {},
    }[options]
    whole = program.train("", way, True, made)
    for save_at in (8, "end"):
        assert joined(program, way, True, made, tmp_path / str(save_at), save_at) == whole


@pytest.mark.parametrize("save_at", SAVES)
@pytest.mark.parametrize("way", ["ours", "ours_new"])
def test_our_loader_goes_on_exactly(program, way, save_at, tmp_path):
    whole = program.train("", way, False, {})
    assert joined(program, way, False, {}, tmp_path, save_at) == whole


@pytest.fixture(scope="module")
def on_two_ranks(program, folder):
    """Return the losses before the checkpoint on one layout and after it on the other, for each program and save."""
    cases = list(itertools.product(["same_object", "new_object", "ours", "ours_new"], [2, 8, "end"]))
    work, alone = [], {}
    for way, save_at in cases:
        there, back = (str(folder / f"{name}-{way}-{save_at}") for name in ("there", "back"))
        alone[way, save_at] = program.train("", way, True, SHUFFLED, there, save_at)
        use = {"way": way, "shared": True, "options": SHUFFLED}
        work += [{**use, "folder": there, "load": True}, {**use, "folder": back, "save_at": save_at}]
    (folder / "work.json").write_text(json.dumps(work))
    ran = on_ranks(2, folder / "train.py", folder / "work.json", folder / "result.json")
    assert (folder / "result.json").exists(), ran.stderr[-4000:]
    found = json.loads((folder / "result.json").read_text())
    return {case: (alone[case], *found[2 * n : 2 * n + 2]) for n, case in enumerate(cases)}


@pytest.mark.parametrize("save_at", [2, 8, "end"])
@pytest.mark.parametrize("way", ["same_object", "new_object", "ours", "ours_new"])
def test_two_ranks_go_on_from_one_process_and_back(program, on_two_ranks, folder, way, save_at):
    whole = [loss for _, loss in program.train("", way, True, SHUFFLED)]
    before, after, begun = on_two_ranks[way, save_at]
    assert [loss for _, loss in before] + after == pytest.approx(whole, rel=1e-5)
    rest = program.train("", way, True, SHUFFLED, str(folder / f"back-{way}-{save_at}"), load=True)
    assert begun + [loss for _, loss in rest] == pytest.approx(whole, rel=1e-5)


def test_several_loaders_keep_the_order_of_their_first_use(program, tmp_path):
    def train(save_at=None, load=False):
        torch.manual_seed(99 if load else 5)
        engine = program.Engine()
        net = torch.nn.Linear(1, 1)
        engine.setup(net, lambda m: torch.optim.SGD(m.parameters(), lr=1e-4), loss=torch.nn.functional.mse_loss)
        data = [program.TensorDataset(program.NUMBERS + shift) for shift in (0, 100)]
        loaders = [program.DataLoader(each, 4, shuffle=True) for each in data]
        first, seen = engine.load(tmp_path)["epoch"] if load else 0, []
        for epoch in range(first, 3):
            for batches in zip(engine.loader(loaders[0]), engine.loader(loaders[1])):
                for (numbers,) in batches:
                    seen.append(numbers.tolist())
                engine.train_batch(numbers[:, None], numbers[:, None])
                engine.step()
                if engine.steps == save_at:
                    engine.save(tmp_path, extra={"epoch": epoch})
                    return seen
        return seen

    whole = train()
    assert train(save_at=8) + train(load=True) == whole


def test_an_interrupted_epoch_that_the_program_does_not_continue_is_refused(program, tmp_path):
    def engine_with_loaders():
        engine = program.Engine()
        net = torch.nn.Linear(1, 1)
        engine.setup(net, lambda m: torch.optim.SGD(m.parameters(), lr=1e-4), loss=torch.nn.functional.mse_loss)
        data = program.TensorDataset(program.NUMBERS)
        return engine, [program.DataLoader(data, 4, shuffle=True) for _ in range(2)]

    def step(engine, loader):
        (numbers,) = next(iter(engine.loader(loader)))
        engine.train_batch(numbers[:, None], numbers[:, None])
        engine.step()

    engine, loaders = engine_with_loaders()
    list(engine.loader(loaders[0]))
    step(engine, loaders[1])
    engine.save(tmp_path)
    engine, loaders = engine_with_loaders()
    engine.load(tmp_path)
    with pytest.raises(
        UsageError, match="within an epoch of loader 2, but after load.. the program trains with loader 1"
    ):
        step(engine, loaders[0])


@pytest.mark.parametrize("shuffle", [False, True])
def test_epochs_that_the_program_always_leaves_early_begin_anew(program, shuffle, tmp_path):
    def train(epochs, load=False):
        torch.manual_seed(99 if load else 5)
        engine = program.Engine()
        engine.setup(torch.nn.Linear(1, 1), lambda m: torch.optim.SGD(m.parameters(), lr=1e-4))
        loader = program.DataLoader(program.TensorDataset(program.NUMBERS), 4, shuffle=shuffle)
        if load:
            engine.load(tmp_path)
        seen = []
        for _ in range(epochs):
            seen += [numbers.tolist() for (numbers,) in itertools.islice(engine.loader(loader), 2)]
        if not load:
            engine.save(tmp_path)
        return seen

    whole = train(4)
    assert train(2) + train(2, load=True) == whole


def test_a_checkpoint_of_a_left_epoch_says_that_its_rest_comes_next(program, tmp_path, capsys):
    engine = program.Engine()
    engine.setup(torch.nn.Linear(1, 1), lambda m: torch.optim.SGD(m.parameters(), lr=1e-4))
    loader = program.DataLoader(program.TensorDataset(program.NUMBERS), 4)
    list(itertools.islice(engine.loader(loader), 2))
    engine.save(tmp_path)
    engine.load(tmp_path)
    assert "left a loop over a loader after 2 of 6 batches; the next loop reads the rest" in capsys.readouterr().err
    assert len(list(engine.loader(loader))) == 4
    assert len(list(engine.loader(loader))) == 6


def test_two_loops_at_the_same_time_have_no_position(program, tmp_path):
    engine = program.Engine()
    engine.setup(torch.nn.Linear(1, 1), lambda m: torch.optim.SGD(m.parameters(), lr=1e-4))
    loader = program.DataLoader(program.TensorDataset(program.NUMBERS), 4, shuffle=True)
    pairs = zip(engine.loader(loader), engine.loader(loader))
    next(pairs), next(pairs)
    engine.save(tmp_path)
    engine = program.Engine()
    engine.setup(torch.nn.Linear(1, 1), lambda m: torch.optim.SGD(m.parameters(), lr=1e-4))
    engine.load(tmp_path)
    with pytest.raises(UsageError, match="the program reads the loader in several loops at the same time"):
        engine.loader(program.DataLoader(program.TensorDataset(program.NUMBERS), 4, shuffle=True))


def test_settings_that_the_program_changes_count_from_the_next_call(program):
    engine = program.Engine()
    loader = program.DataLoader(program.TensorDataset(program.NUMBERS), 4)
    assert len(next(iter(engine.loader(loader)))) == 1
    loader.collate_fn = lambda samples: torch.stack([row for (row,) in samples])
    assert next(iter(engine.loader(loader))).tolist() == [0, 1, 2, 3]


def position(**changes):
    return {"samples": 24, "batches": 6, "taken": 0, "why": None, "begun": None, "generator": None, **changes}


def test_positions_of_the_previous_version_are_loaded(program):
    def batches(states):
        engine = program.Engine()
        engine._loader_positions.load(states)
        loader = program.DataLoader(program.TensorDataset(program.NUMBERS), 4)
        return [numbers[0].item() for (numbers,) in engine.loader(loader)]

    begun = [bytes(torch.get_rng_state().tolist()).hex(), None]
    assert batches([position(taken=4, begun=begun)]) == [16, 20]
    assert batches([position(), position(taken=4, begun=begun)]) == [0, 4, 8, 12, 16, 20]
