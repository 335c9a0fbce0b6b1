"""Do ranks get the batches of one process from `paceline.data.Loader`, and go on where a checkpoint left it?"""

from __future__ import annotations

import importlib.util
import json
import sys
from itertools import islice

import pytest
import torch
from tests.train.launching import on_ranks
from torch.utils.data import TensorDataset

from paceline.core.errors import UsageError
from paceline.data import Loader
from paceline.train import Engine

# The last step of an epoch has 2 of 4 samples, one for each rank.
TRAINS = """
import json, sys
from itertools import islice
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import TensorDataset
from paceline.data import Loader
from paceline.train import Engine

INPUTS = torch.randn(22, 8, generator=torch.Generator().manual_seed(0))
NUMBERS = torch.arange(22)


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.up_proj, self.act, self.down_proj = nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)

    def forward(self, x):
        return self.down_proj(self.act(self.up_proj(x)))


def engine_and_loader(layout, state=None):
    torch.manual_seed(0)
    engine = Engine({"layout": layout})
    engine.setup(
        nn.Sequential(Part()),
        lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
        loss=lambda output, number: ((output.mean(-1) - number) ** 2).mean(),
    )
    made = lambda: engine.loader(Loader(TensorDataset(INPUTS, NUMBERS), 4, shuffle=True, seed=3, threads=0))
    loader = made() if state is None or layout == "tp=2" else None  # before load() and after it
    if state is not None:
        engine.load(state)
    return engine, loader or made()


def train(engine, batches):
    '''Return the numbers of each step on this rank, and the losses.'''
    numbers, losses = [], []
    for inputs, target in batches:
        engine.train_batch(inputs, target)
        numbers.append(target.tolist())
        losses.append(engine.loss())
        engine.step()
    return numbers, losses


def of_all_ranks(found):
    every = [None, None]
    torch.distributed.all_gather_object(every, found)
    return every


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    out, found = Path(sys.argv[1]), {}
    engine, loader = engine_and_loader("dp=2")
    first = train(engine, loader)
    second = train(engine, islice(loader, 4))
    engine.save(out / "state")
    found["dp=2"] = of_all_ranks([one + other for one, other in zip(first, second)])
    engine, loader = engine_and_loader("tp=2", out / "state")
    found["tp=2"] = of_all_ranks(train(engine, loader))
    found["next epoch"] = of_all_ranks(train(engine, islice(loader, 2)))
    if torch.distributed.get_rank() == 0:
        (out / "found.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loaders")
    (folder / "train.py").write_text(TRAINS)
    done = on_ranks(2, folder / "train.py", folder)
    assert (folder / "found.json").exists(), done.stderr[:4000]
    return folder, json.loads((folder / "found.json").read_text())


@pytest.fixture(scope="module")
def program(ran):
    """The same program, in this process."""
    spec = importlib.util.spec_from_file_location("train_by_loader", ran[0] / "train.py")
    sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[spec.name])
    yield sys.modules[spec.name]
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def alone(program):
    """Two epochs and two steps on one process."""
    engine, loader = program.engine_and_loader("")
    epochs = [program.train(engine, batches) for batches in (loader, loader, islice(loader, 2))]
    return [sum(parts, []) for parts in zip(*epochs)]


def test_replicas_share_the_batches_of_one_process(ran, alone):
    (zero, losses), (one, _) = ran[1]["dp=2"]
    assert [len(step) for step in zero] == [len(step) for step in one] == [2, 2, 2, 2, 2, 1, 2, 2, 2, 2]
    assert [sorted(a + b) for a, b in zip(zero, one)] == [sorted(step) for step in alone[0][:10]]
    assert losses == pytest.approx(alone[1][:10], rel=1e-5)


def test_a_checkpoint_goes_on_in_the_middle_of_an_epoch_on_another_layout(ran, alone):
    for begin, end, what in ((10, 12, "tp=2"), (12, 14, "next epoch")):
        (zero, losses), (one, _) = ran[1][what]
        assert zero == one == alone[0][begin:end]  # with tp all ranks have the whole batch
        assert losses == pytest.approx(alone[1][begin:end], rel=1e-5)


def test_one_process_goes_on_too(ran, program, alone):
    engine, loader = program.engine_and_loader("", ran[0] / "state")
    numbers, losses = program.train(engine, loader)
    assert (numbers, losses) == (alone[0][10:12], pytest.approx(alone[1][10:12], rel=1e-5))


def test_a_checkpoint_of_another_data_set_or_fewer_loaders_is_refused(ran, program):
    def loader(samples):
        return Loader(TensorDataset(torch.zeros(samples, 8), torch.zeros(samples)), 4, threads=0)

    engine, _ = program.engine_and_loader("", ran[0] / "state")
    with pytest.raises(UsageError, match="positions of 1 loaders, but the engine got 2 before load"):
        _second = engine.loader(loader(22))
        engine.load(ran[0] / "state")
    engine = Engine()
    engine.setup(torch.nn.Sequential(program.Part()), lambda model: torch.optim.Adam(model.parameters()))
    engine.load(ran[0] / "state")
    with pytest.raises(UsageError, match="a data set of 22 samples, and this one has 24"):
        engine.loader(loader(24))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"batch_size": 6}, "batch_size=6 is not a multiple of 4 .* take 8"),
        ({"batch_size": 8}, r'last batch has 2 of 8 samples, .*ends="drop"'),
        ({"batch_size": 8, "ends": "drop"}, None),
        ({"batch_size": 8, "ends": "pad"}, None),
        ({"max_tokens": 4, "length": [1] * 10}, "not those of max_tokens=; give batch_size="),
    ],
)
def test_batches_that_cannot_be_split_are_refused(settings, says):
    engine = Engine({"memory": {"micro_batches": 4}})
    loader = Loader(TensorDataset(torch.zeros(10, 8)), threads=0, **settings)
    if says is None:
        assert {len(batch[0]) for batch in engine.loader(loader)} == {8}
        return
    with pytest.raises(UsageError, match=says):
        engine.loader(loader)
