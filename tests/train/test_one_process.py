"""Does a loop on one process get the full batch's gradient, the same norm, and the precision that was asked for?"""

from __future__ import annotations

import copy
from collections import UserDict
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

from paceline.core.errors import UsageError
from paceline.train import Engine
from paceline.train.ranks.world import join
from paceline.train.recipe import made

INPUTS = torch.randn(12, 6, 8, generator=torch.Generator().manual_seed(0))
TARGET = torch.randint(0, 5, (12, 6), generator=torch.Generator().manual_seed(1))


class Part(nn.Module):
    def __init__(self, norm=None):
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(8, 32), norm or nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, x):
        return x + self.inside(x)


def net():
    torch.manual_seed(0)
    return nn.Sequential(*(Part() for _ in range(4)), nn.Linear(8, 5))


def loss_of(output, target):
    return cross_entropy(output.flatten(0, 1), target.flatten())


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def engine_of(model, optimizer=sgd, recipe=None, **options):
    engine = Engine(recipe)
    return engine, *engine.setup(model, optimizer, loss=loss_of, **options)


def ragged():
    target = TARGET.clone()
    for number, row in enumerate(target):
        row[number % 6 + 1 :] = -100
    return target


def tokens(target):
    return (target != -100).sum()


def after_one_step(target, clip):
    """Of a loop by hand on the whole batch."""
    model = net()
    loss = loss_of(model(INPUTS), target)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
    sgd(model).step()
    return model, loss, norm


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("parts", [1, 3, 4])
def test_parts_of_a_batch_make_its_gradient(parts, weighted):
    target = ragged() if weighted else TARGET
    expected, loss, norm = after_one_step(target, 0.3)
    recipe = {"memory": {"micro_batches": parts}, "optimizer": {"clip_norm": 0.3}}
    engine, model, _ = engine_of(net(), recipe=recipe, weight=tokens if weighted else None)
    engine.train_batch(INPUTS, target)
    assert engine.loss() == pytest.approx(loss.item(), abs=1e-6)
    step = engine.step()
    assert step.norm.item() == pytest.approx(norm.item(), abs=1e-6)
    assert step.applied
    for own, other in zip(model.parameters(), expected.parameters()):
        torch.testing.assert_close(own, other, atol=1e-6, rtol=0)


def test_a_loop_of_ones_own_may_have_a_short_step():
    engine, model, _ = engine_of(net(), recipe={"memory": {"micro_batches": 4}})
    for number in range(2):
        with engine.micro_step(last=number == 1):
            engine.backward(loss_of(model(INPUTS[number * 6 :][:6]), TARGET[number * 6 :][:6]))
    engine.step()
    expected, _, _ = after_one_step(TARGET, 1e9)
    for own, other in zip(model.parameters(), expected.parameters()):
        torch.testing.assert_close(own, other, atol=1e-6, rtol=0)


def test_a_step_in_the_middle_is_refused():
    engine, model, _ = engine_of(net(), recipe={"memory": {"micro_batches": 4}})
    with engine.micro_step():
        engine.backward(loss_of(model(INPUTS), TARGET))
    with pytest.raises(UsageError, match=r"after 1 of 4 micro-steps.*last=True"):
        engine.step()


def test_a_step_of_the_optimizer_by_the_program_is_refused():
    engine = Engine()
    model, optimizer = engine.setup(net(), lambda model: torch.optim.AdamW(model.parameters()))
    with engine.micro_step():
        engine.backward(loss_of(model(INPUTS), TARGET))
    with pytest.raises(UsageError, match=r"calls optimizer.step\(\).* call engine.step\(\) instead"):
        optimizer.step()
    engine.step()


def test_losses_with_and_without_weight_do_not_mix():
    engine, model, _ = engine_of(net(), recipe={"memory": {"micro_batches": 2}})
    with engine.micro_step():
        engine.backward(loss_of(model(INPUTS), TARGET))
    with pytest.raises(UsageError, match="others have none"), engine.micro_step():
        engine.backward(loss_of(model(INPUTS), TARGET), weight=3)


def kept_bytes(model):
    """What forward keeps for backward, seen from outside of the blocks."""
    seen = {}

    def pack(tensor):
        seen[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss_of(model(INPUTS), TARGET)
    return sum(seen.values())


@pytest.mark.parametrize("memory", [{"checkpoint_every": 1}, {"checkpoint_every": 2}, {"activation_budget": 0.5}])
def test_blocks_computed_again_keep_less_and_change_nothing(memory):
    expected, _, _ = after_one_step(TARGET, 1e9)
    engine, model, _ = engine_of(net(), recipe={"memory": memory})
    engine.train_batch(INPUTS, TARGET)
    engine.step()
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in expected.named_parameters()]
    for own, other in zip(model.parameters(), expected.parameters()):
        assert torch.equal(own, other)
    assert kept_bytes(model) < 0.7 * kept_bytes(net())


def flops(memory):
    engine, _, _ = engine_of(net(), recipe={"memory": memory})
    with FlopCounterMode(display=False) as counter:
        engine.train_batch(INPUTS, TARGET)
    return counter.get_total_flops()


def test_selective_keeps_products_of_matrices():
    assert flops({}) == flops({"selective": True}) < flops({"checkpoint_every": 1})
    expected, _, _ = after_one_step(TARGET, 1e9)
    engine, model, _ = engine_of(net(), recipe={"memory": {"selective": True}})
    engine.train_batch(INPUTS, TARGET)
    engine.step()
    assert all(torch.equal(own, other) for own, other in zip(model.parameters(), expected.parameters()))


def test_what_cannot_be_computed_again_is_refused():
    with pytest.raises(UsageError, match="no repeated blocks"):
        engine_of(nn.Linear(8, 5), recipe={"memory": {"checkpoint_every": 1}})
    with pytest.raises(UsageError, match="count a recomputed batch twice"):
        engine_of(nn.Sequential(*(Part(nn.BatchNorm1d(6)) for _ in range(2))), recipe={"memory": {"selective": True}})


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_autocast_computes_in_sixteen_bits_and_keeps_parameters(name, dtype):
    engine, model, _ = engine_of(net(), recipe={"precision": {"autocast": name}, "optimizer": {"clip_norm": 1e9}})
    seen = []
    model[0].inside[0].register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    engine.train_batch(INPUTS, TARGET)
    _, loss, norm = after_one_step(TARGET, 1e9)
    assert engine.loss() == pytest.approx(loss.item(), abs=0.02)
    assert engine.step().norm.item() == pytest.approx(norm.item(), rel=0.05)
    assert (seen, next(model.parameters()).dtype) == ([dtype], torch.float32)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU may compute in fp8")
def test_fp8_is_refused_where_the_hardware_has_none():
    with pytest.raises(
        UsageError, match=r"capability 8\.9 or higher, and there is none; choose one of fp32, tf32, bf16"
    ):
        Engine({"precision": {"autocast": "bf16", "fp8": True}})


def test_a_step_that_overflows_is_skipped_and_counted():
    recipe = {"precision": {"autocast": "fp16"}, "memory": {"micro_batches": 2}}
    engine, model, optimizer = engine_of(
        net(), recipe=recipe, schedule=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5)
    )
    before = copy.deepcopy(model.state_dict())
    engine.train_batch(INPUTS * 1e30, TARGET)
    assert not engine.step().applied
    assert (engine.scale.value, engine.scale.skipped, engine.steps) == (32768.0, 1, 0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert optimizer.param_groups[0]["lr"] == 0.1  # the schedule counts applied steps
    engine.train_batch(INPUTS, TARGET)
    assert engine.step().applied
    assert (engine.scale.value, engine.steps, optimizer.param_groups[0]["lr"]) == (32768.0, 1, 0.05)


def test_an_optimizer_from_before_is_refused():
    model = net()
    with pytest.raises(UsageError, match="a ready SGD.*Give a function"):
        Engine().setup(model, sgd(model))
    with pytest.raises(UsageError, match="26 parameters of the optimizer do not belong to the model"):
        Engine().setup(model, lambda _: sgd(net()))


def test_a_model_with_nothing_to_train_is_refused():
    with pytest.raises(UsageError, match="Flatten has no parameter with requires_grad=True"):
        Engine().setup(nn.Flatten(), sgd)


def test_a_checkpoint_goes_on_where_it_was(tmp_path):
    options = {"schedule": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5)}
    adam = lambda model: torch.optim.Adam(model.parameters(), lr=0.01)  # noqa: E731
    engine, model, _ = engine_of(net(), adam, **options)
    for number in range(4):
        if number == 2:
            engine.save(tmp_path)
        engine.train_batch(INPUTS, TARGET)
        engine.step()
    other, again, optimizer = engine_of(nn.Sequential(*net()), adam, **options)
    other.load(tmp_path)
    assert (other.steps, optimizer.param_groups[0]["lr"]) == (2, 0.0025)
    for _ in range(2):
        other.train_batch(INPUTS, TARGET)
        other.step()
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    engine, _, _ = engine_of(net())
    with pytest.raises(UsageError, match=r"no complete checkpoint: .*engine\.save"):
        engine.load(tmp_path)
    engine.save(tmp_path)
    larger, _, _ = engine_of(nn.Sequential(net(), nn.Linear(5, 5)))
    with pytest.raises(UsageError, match=r"does not belong to this model and optimizer: Missing key [^<]*$"):
        larger.load(tmp_path)
    half, _, _ = engine_of(net(), recipe={"precision": {"autocast": "fp16"}})
    with pytest.raises(UsageError, match="has no scale: it was saved with another precision"):
        half.load(tmp_path)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(8))


@pytest.mark.parametrize(
    ("loader", "says"),
    [
        (DataLoader(Stream(), batch_size=None), "DataLoader of Stream has no batch_size"),
        (DataLoader(TensorDataset(INPUTS), batch_size=6), "batch_size=6 is not a multiple of 4 .* take 8"),
        (DataLoader(TensorDataset(INPUTS), batch_size=8), None),
        (DataLoader(INPUTS, 4, sampler=DistributedSampler(INPUTS, 2, 0)), "would be split twice"),
        (DataLoader(TensorDataset(INPUTS[:10]), batch_size=8), r"last batch has 2 of 8 samples.*drop_last=True"),
    ],
)
def test_batches_that_cannot_be_split_are_refused(loader, says):
    engine = Engine({"memory": {"micro_batches": 4}})
    if says is None:
        assert [len(batch[0]) for batch in engine.loader(loader)] == [8, 4]
        return
    with pytest.raises(UsageError, match=says):
        engine.loader(loader)


def test_one_process_is_a_world():
    world = join(made({}).layout)
    assert (world.rank, world.sample_part, world.data_group, world.device.type) == (0, 0, None, "cpu")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (torch.optim.AdamW, "was given AdamW for the optimizer. Give a function"),
        (lambda model: None, "returned a NoneType. Give a function"),
        (lambda model: torch.optim.LBFGS(model.parameters()), "LBFGS computes the loss several times in a step"),
    ],
)
def test_what_makes_no_optimizer_is_refused(given, says):
    with pytest.raises(UsageError, match=says):
        engine_of(net(), given)


def test_a_schedule_by_losses_is_refused():
    with pytest.raises(UsageError, match="leave out schedule="):
        engine_of(net(), schedule=torch.optim.lr_scheduler.ReduceLROnPlateau)


def test_a_second_model_is_refused():
    engine, *_ = engine_of(net())
    with pytest.raises(UsageError, match="an engine trains only one model"):
        engine.setup(net(), sgd)


def test_a_model_may_have_state_that_is_no_tensor():
    class Counting(nn.Sequential):
        def get_extra_state(self):
            return {"seen": 1}

        def set_extra_state(self, state):
            pass

    engine, *_ = engine_of(Counting(net()))
    engine.train_batch(INPUTS, TARGET)
    assert engine.step().applied


class Named(NamedTuple):
    inputs: torch.Tensor
    names: list[str]


@pytest.mark.parametrize(
    "batch",
    [
        {"inputs": INPUTS, "names": list("abcdefghijkl"), "of": "all"},
        UserDict({"inputs": INPUTS, "names": list("abcdefghijkl"), "of": "all"}),
    ],
)
def test_batches_are_split_by_samples_whatever_they_hold(batch):
    _, second = Engine({"memory": {"micro_batches": 2}}).split(batch)
    assert second["inputs"].equal(INPUTS[6:])
    assert (second["names"], second["of"]) == (list("ghijkl"), "all")


def test_named_batches_stay_named():
    class Samples(Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, index):
            return Named(INPUTS[index], f"sample {index}")

    engine = Engine({"memory": {"micro_batches": 2}})
    (batch,) = engine.loader(DataLoader(Samples(), 12))
    first, _ = engine.split(batch)
    assert isinstance(first, Named)
    assert first.inputs.equal(INPUTS[:6])
    assert list(first.names) == [f"sample {number}" for number in range(6)]


def test_blocks_that_keep_a_cache_for_generation_keep_none_when_computed_again():
    """As the models of transformers do, which keep keys and values where nothing is said."""

    class Caching(nn.Module):
        def __init__(self):
            super().__init__()
            self.config, self.layers, self.said = SimpleNamespace(use_cache=True), net(), []

        def forward(self, x, use_cache=None):
            self.said.append(use_cache)
            return self.layers(x)

    model = Caching()
    engine, *_ = engine_of(model, recipe={"memory": {"selective": True}})
    engine.train_batch(INPUTS, TARGET)
    model.eval()(INPUTS)
    assert model.said == [False, None]
