"""Is the gradient of a step that of one process: weights of 0, several losses, BatchNorm with micro-batches?"""

from __future__ import annotations

import pytest
import torch
from tests.train.launching import results_of
from torch import nn
from torch.nn.functional import cross_entropy
from torch.overrides import TorchFunctionMode

from paceline.core.errors import UsageError
from paceline.train import Engine, gradients

INPUTS = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
TARGET = torch.arange(8) % 4


def net():
    torch.manual_seed(0)
    return nn.Linear(6, 4)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def engine_of(**recipe):
    engine, model = Engine(recipe), net()
    return engine, model, engine.setup(model, sgd, loss=cross_entropy)


def test_a_first_weight_of_0_leaves_gradients_of_their_size():
    """Padding in the first batch of a run is no measure of what weights will be."""
    engine, model, _ = engine_of(optimizer={"clip_norm": 1e6}, memory={"micro_batches": 2})
    expected = net()
    cross_entropy(expected(INPUTS[4:]), TARGET[4:]).backward()
    for rows, weight in ((INPUTS[:4], 0), (INPUTS[4:], 7)):
        with engine.micro_step():
            engine.backward(cross_entropy(model(rows), TARGET[4:]), weight)
    norm = float(engine.step().norm)
    assert norm == pytest.approx(float(nn.utils.get_total_norm([p.grad for p in expected.parameters()])), rel=1e-5)


@pytest.mark.parametrize("zero", [0, torch.tensor(0)], ids=["number", "tensor"])
def test_a_step_that_weighs_0_changes_nothing(zero):
    """Its loss is a mean over nothing, whose gradient is no number."""
    engine, model, _ = engine_of(optimizer={"clip_norm": 1.0})
    before = model.weight.detach().clone()
    mask = torch.zeros(8)
    with engine.micro_step():
        losses = cross_entropy(model(INPUTS), TARGET, reduction="none")
        engine.backward((losses * mask).sum() / mask.sum(), zero)
    norm = engine.step().norm
    assert norm == 0
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("weight", [None, 5], ids=["without weight", "with weight"])
def test_losses_of_one_micro_step_add_up(weight):
    engine, model, _ = engine_of(memory={"micro_batches": 2})
    expected = net()
    updates = sgd(expected)
    output = expected(INPUTS)
    (cross_entropy(output, TARGET) + output.square().mean()).backward()
    updates.step()
    for half in (slice(0, 4), slice(4, 8)):
        with engine.micro_step():
            engine.backward(cross_entropy(model(INPUTS[half]), TARGET[half]), weight)
            engine.backward(model(INPUTS[half]).square().mean(), weight)
    engine.step()
    assert torch.allclose(model.weight, expected.weight, atol=1e-6)


def test_losses_of_one_micro_step_have_one_weight():
    engine, model, _ = engine_of()
    with engine.micro_step():
        engine.backward(model(INPUTS).mean(), 3)
        with pytest.raises(UsageError, match="two losses of one micro-step have the weights 3 and 4"):
            engine.backward(model(INPUTS).mean(), torch.tensor(4))


class NoCopies(TorchFunctionMode):
    """Fails where a number is copied to a device, which a GPU is waited for."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.as_tensor, torch.tensor):
            raise AssertionError(f"{function.__name__} copies a number to the device")
        return function(*args, **kwargs or {})


@pytest.mark.parametrize("weight", [None, 3], ids=["without weights", "with weights"])
def test_no_number_is_copied_to_the_device_in_a_step(weight):
    engine, model, _ = engine_of(memory={"micro_batches": 2}, optimizer={"clip_norm": 1.0})

    def step():
        with engine.micro_step(last=True):  # a short step: gradients get another factor
            engine.backward(cross_entropy(model(INPUTS), TARGET), weight)
        engine.step()

    step()  # the first one agrees on the size of weights
    with NoCopies():
        step()


def test_gradients_are_multiplied_where_they_are():
    rows = [torch.ones(2), torch.ones(3, dtype=torch.float64)]
    with NoCopies():
        gradients.multiply(rows, 0.5)
        gradients.multiply(rows, torch.ones((), dtype=torch.float64) * 4)
    assert [row.tolist() for row in rows] == [[2.0, 2.0], [2.0, 2.0, 2.0]]


@pytest.mark.parametrize(
    "make",
    [
        lambda model: torch.optim.Adam(model.parameters(), lr=0.1),
        lambda model: torch.optim.Rprop(model.parameters(), lr=0.1),
        lambda model: torch.optim.Adagrad(model.parameters(), lr=0.1),
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.5),
    ],
    ids=["Adam", "Rprop", "Adagrad", "SGD"],
)
def test_a_checkpoint_from_before_the_first_step_leaves_the_optimizer_as_it_is(make, tmp_path):
    def trained(save=None, load=None):
        engine, model = Engine(), net()
        engine.setup(model, make, loss=cross_entropy)
        if save:
            engine.save(save)
        if load:
            engine.load(load)
        for _ in range(4):
            engine.train_batch(INPUTS, TARGET)
            engine.step()
        return model.weight.detach()

    expected, saved, loaded = trained(), trained(save=tmp_path), trained(load=tmp_path)
    assert torch.equal(saved, expected)
    assert torch.equal(loaded, expected)


def test_a_checkpoint_from_before_the_first_step_takes_a_run_back_there(tmp_path):
    engine, model = Engine(), net()
    _, updates = engine.setup(model, lambda model: torch.optim.Adam(model.parameters(), lr=0.1), loss=cross_entropy)
    engine.save(tmp_path)
    weights = []
    for _ in range(2):
        for _ in range(3):
            engine.train_batch(INPUTS, TARGET)
            engine.step()
        weights.append(model.weight.detach().clone())
        updates.param_groups[0]["lr"] = 9.0
        engine.load(tmp_path)
    assert torch.equal(*weights)
    assert updates.param_groups[0]["lr"] == 0.1


ON_RANKS = """
import json, sys
from pathlib import Path
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from paceline.train import Engine

OUT = Path(sys.argv[1])
DRAWN = torch.Generator().manual_seed(0)
INPUTS, TARGET = torch.randn(48, 6, generator=DRAWN), torch.randint(0, 4, (48,), generator=DRAWN)
TARGET[:16] = -100  # the first two batches have no target


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def of_valid(output, target):
    losses = cross_entropy(output, target, ignore_index=-100, reduction="none")
    return losses.sum() / (target != -100).sum()


def valid(target):
    return (target != -100).sum()


def made(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def whole(value):
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def expected():
    model, losses = net(), []
    updates = made(model)
    for inputs, target in DataLoader(TensorDataset(INPUTS, TARGET), 8):
        for rows, wanted in zip(inputs.chunk(2), target.chunk(2)):
            output = model(rows)
            if valid(target):
                (cross_entropy(output, wanted, ignore_index=-100, reduction="sum") / valid(target)).backward()
        updates.step()
        updates.zero_grad()
    return model


def difference(layout):
    engine = Engine({"layout": layout, "memory": {"micro_batches": 2}, "optimizer": {"clip_norm": 1e9}})
    model, _ = engine.setup(net(), made, loss=of_valid, weight=valid)
    for batch in engine.loader(DataLoader(TensorDataset(INPUTS, TARGET), 8)):
        engine.train_batch(*batch)
        engine.step()
    wanted = expected().state_dict()
    state = getattr(model, "module", model).state_dict()
    off = max((whole(value).float() - wanted[name].float()).abs().max().item() for name, value in state.items())
    return off if off == off else "not a number"


def difference_of_sizes():
    # Batches of 8, 8 and 4 samples, in two epochs, and with another length in between.
    def squared(output, wanted):
        return (output - wanted).square().mean()

    def several():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 6))

    engine, alone = Engine({"layout": "pp=2", "memory": {"micro_batches": 2}}), several()
    updates = torch.optim.SGD(alone.parameters(), lr=0.1)
    engine.setup(several(), lambda model: torch.optim.SGD(model.parameters(), lr=0.1), loss=squared)
    wide = torch.randn(4, 3, 6, generator=torch.Generator().manual_seed(2))
    off = 0.0
    for rows in [INPUTS[:8], INPUTS[8:16], INPUTS[16:20], wide, INPUTS[:8], INPUTS[8:12]]:
        engine.train_batch(rows, rows.roll(1, 0))
        loss = squared(alone(rows), rows.roll(1, 0))
        loss.backward()
        updates.step()
        updates.zero_grad()
        off = max(off, abs(float(engine.loss()) - loss.item()))
        engine.step()
    return off


torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
found = {layout: difference(layout) for layout in ("dp=2", "shard=2", "pp=2")}
found["sizes"] = difference_of_sizes()
every = [None, None]
torch.distributed.all_gather_object(every, found)
if torch.distributed.get_rank() == 0:
    OUT.write_text(json.dumps({layout: [one[layout] for one in every] for layout in found}))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def on_two(tmp_path_factory):
    return results_of(ON_RANKS, 2, tmp_path_factory.mktemp("arithmetic"), timeout_s=240)


def test_a_pipeline_trains_batches_of_several_shapes(on_two):
    assert all(off < 1e-6 for off in on_two["sizes"]), on_two


@pytest.mark.parametrize("layout", ["dp=2", "shard=2", "pp=2"])
def test_batch_norm_sees_the_micro_batches_of_one_process(on_two, layout):
    """The first steps weigh nothing, their loss is no number, and gradients are clipped: all of that too."""
    assert all(isinstance(off, float) and off < 1e-5 for off in on_two[layout]), on_two
