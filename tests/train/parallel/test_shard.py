"""Does `shard` train what one process trains: experts that some ranks do not use, inputs that 16 bits would round?"""

from __future__ import annotations

import json

import pytest
from tests.train.launching import on_ranks, results_of

PROGRAM = """
import json, sys
from pathlib import Path
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from paceline.core.errors import UsageError
from paceline.train import Engine

OUT = Path(sys.argv[1])
DRAWN = torch.Generator().manual_seed(0)
INPUTS, TARGET = torch.randn(5, 8, 6, generator=DRAWN), torch.randint(0, 4, (5, 8), generator=DRAWN)
INPUTS[0, :, 0], INPUTS[1, :4, 0] = 3.0, 3.0  # one expert for all rows, and one for each rank
INPUTS[1, 4:, 0] = -3.0


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, x):
        return self.down(self.up(x).relu())


class Mixture(nn.Module):
    '''Rows go to one of two experts, by the sign of their first number.'''

    def __init__(self, name):
        super().__init__()
        self.name = name
        setattr(self, name, nn.ModuleList(Expert() for _ in range(2)))

    def forward(self, x):
        out = x.clone()
        for number, expert in enumerate(getattr(self, self.name)):
            rows = (x[:, 0] > 0) == (number == 0)
            if rows.any():
                out[rows] = x[rows] + expert(x[rows])
        return out


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mixture = nn.LayerNorm(6), Mixture("parts")

    def forward(self, x):
        return self.mixture(x) + self.norm(x)


def layers():
    torch.manual_seed(0)
    return nn.Sequential(Layer(), Layer(), nn.Linear(6, 4))


def flat(name):
    torch.manual_seed(0)
    return nn.Sequential(Mixture(name), nn.Linear(6, 4))


class Timed(nn.Module):
    '''Timesteps of a diffusion model: neighbours are one number in bf16.'''

    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(8), nn.Linear(8, 1)

    def forward(self, steps):
        frequencies = 2.0 ** -torch.arange(4)
        angles = steps[:, None] * frequencies
        return self.out(self.norm(torch.cat([angles.sin(), angles.cos()], -1)))


def made(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def whole(value):
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def expected(model):
    updates = made(model)
    for inputs, target in zip(INPUTS, TARGET):
        cross_entropy(model(inputs), target).backward()
        updates.step()
        updates.zero_grad()
    return model.state_dict()


def difference(make):
    engine, wanted = Engine({"layout": "shard=2"}), expected(make())
    model, _ = engine.setup(make(), made, loss=cross_entropy)
    for inputs, target in zip(INPUTS, TARGET):
        engine.train_batch(inputs.chunk(2)[engine.world.rank], target.chunk(2)[engine.world.rank])
        engine.step()
    return max((whole(value) - wanted[name]).abs().max().item() for name, value in model.state_dict().items())


def seen_of_timesteps():
    torch.manual_seed(0)
    engine = Engine({"layout": "shard=2", "precision": {"autocast": "bf16"}})
    model, _ = engine.setup(Timed(), made, loss=mse_loss)
    steps = torch.arange(900.0, 908.0)
    engine.train_batch(steps, torch.zeros(8, 1))
    engine.step()
    with torch.no_grad():  # outside a micro-step too
        return len(set(model.eval()(steps).flatten().tolist()))


torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
if sys.argv[2:] == ["blocks"]:
    difference(lambda: flat("blocks"))
found = {"experts in layers": difference(layers), "experts": difference(lambda: flat("experts"))}
found["timesteps"] = seen_of_timesteps()
if torch.distributed.get_rank() == 0:
    OUT.write_text(json.dumps(found))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    program = tmp_path_factory.mktemp("shard") / "program.py"
    program.write_text(PROGRAM)
    return program


@pytest.fixture(scope="module")
def found(program):
    result = program.parent / "result.json"
    ran = on_ranks(2, program, result)
    assert result.exists(), ran.stderr[:4000]
    return json.loads(result.read_text())


@pytest.mark.parametrize("name", ["experts in layers", "experts"])
def test_experts_that_a_rank_does_not_use_train_as_on_one_process(found, name):
    """AdamW leaves those that no rank uses as they are, as on one process."""
    assert found[name] < 1e-5


def test_inputs_are_not_rounded_before_they_meet_a_parameter(found):
    assert found["timesteps"] > 4


def test_ranks_that_call_different_blocks_are_refused(program):
    ran = on_ranks(2, program, program.parent / "none.json", "blocks", timeout_s=60)
    assert ran.returncode == 2
    assert "does not call the same blocks on all ranks in each forward pass" in ran.stderr


SCALARS = """
import torch
from torch import nn
from torch.nn.functional import mse_loss
from tests.train.small_model import BATCHES, begin, finish
from paceline.core.errors import UsageError
from paceline.train import Engine

OUT = begin()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.gain = nn.Linear(4, 4), nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return x + self.gain * self.up(x).tanh()


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(2)), nn.Linear(4, 2)
        self.scale, self.unused = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.tensor(3.0))
        self.frozen = nn.Parameter(torch.tensor(0.1), requires_grad=False)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return {"out": self.head(x) * self.scale.exp() + self.frozen}


def loss_of(output, target):
    return mse_loss(output["out"], target)


def scaled():
    torch.manual_seed(5)
    return Scaled()


def adamw(model):
    return torch.optim.AdamW(model.parameters(), 0.05)


def by_hand(clip):
    model, losses = scaled(), []
    optimizer = adamw(model)
    for inputs, target in BATCHES:
        optimizer.zero_grad()
        loss = loss_of(model(inputs), target)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        losses.append(loss.item())
    return losses, [float(each.detach()) for each in model.parameters() if not each.dim()]


def by_engine(layout, clip, resumes=False):
    recipe = {"layout": layout, "memory": {"micro_batches": 2}}
    if clip == "recipe":
        recipe["optimizer"] = {"clip_norm": 0.1}
    engine, losses = Engine(recipe), []
    model, _ = engine.setup(scaled(), adamw, loss=loss_of)
    for number, (inputs, target) in enumerate(BATCHES):
        if resumes and number == 3:
            engine.save(OUT.parent / "saved")
            engine = Engine(recipe)
            model, _ = engine.setup(scaled(), adamw, loss=loss_of)
            engine.load(OUT.parent / "saved")
        engine.train_batch(*(each.chunk(2)[engine.world.sample_part] for each in (inputs, target)))
        losses.append(engine.loss())
        engine.step()
    return losses, [float(each.detach()) for each in model.parameters() if not each.dim()]


def of_class_names(model):
    parts = [(part.__class__.__name__ in ("Block", "Scaled"), part) for part in model.modules()]
    return in_groups(parts)


def of_types(model):
    return in_groups([(type(part) is Block, part) for part in model.modules()])


def in_groups(parts):
    groups = {True: [], False: []}
    for chosen, part in parts:
        groups[chosen] += part.parameters(recurse=False)
    return torch.optim.SGD([{"params": groups[True], "lr": 0.5}, {"params": groups[False], "lr": 0.01}])


def rates(make, layout):
    with Engine({"layout": layout}) as engine:
        model, optimizer = engine.setup(scaled(), make, loss=loss_of)
    groups = [(group["lr"], list(map(id, group["params"]))) for group in optimizer.param_groups]
    return {name: lr for name, each in model.named_parameters() for lr, ids in groups if id(each) in ids}


class Weighted(nn.Module):
    '''Returns parameters for the loss: a whole one, a view of one, and a scalar.'''

    def __init__(self):
        super().__init__()
        self.head, self.scale = nn.Linear(4, 2), nn.Parameter(torch.tensor(0.2))
        self.blocks, self.variances = nn.ModuleList(Block() for _ in range(2)), nn.Parameter(torch.zeros(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x), self.variances, {"bias": self.head.bias[:1]}, self.scale


def weighted_loss(output, target):
    out, variances, more, scale = output
    errors = (out - target).square().mean(0)
    return (errors * (-variances).exp() + variances).sum() * scale.exp() + more["bias"].square().sum()


def returned(layout):
    torch.manual_seed(5)
    model, losses = Weighted(), []
    if not layout:
        optimizer = adamw(model)
        for inputs, target in BATCHES:
            optimizer.zero_grad()
            loss = weighted_loss(model(inputs), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses
    engine = Engine({"layout": layout})
    engine.setup(model, adamw, loss=weighted_loss)
    for inputs, target in BATCHES:
        engine.train_batch(*(each.chunk(2)[engine.world.sample_part] for each in (inputs, target)))
        losses.append(engine.loss())
        engine.step()
    return losses


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.ones(4, 4, dtype=torch.complex64))

    def forward(self, x):
        return (x.to(torch.complex64) @ self.mix).abs()


def refused(model, use):
    try:
        with Engine({"layout": "shard=2"}) as engine:
            model, _ = engine.setup(model, adamw, loss=loss_of)
            refused.engine = engine
            use(model)
    except UsageError as error:
        return str(error)


@torch.no_grad()
def average(model):
    for own, other in zip(model.parameters(), scaled().parameters()):
        other.mul_(0.9).add_(own, alpha=0.1)


@torch.no_grad()
def limit(model):
    model.head.weight.copy_(torch.renorm(model.head.weight, 2, 0, 1.0))


def hook(model):
    model.head.weight.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
    engine = refused.engine
    inputs, target = (each.chunk(2)[engine.world.sample_part] for each in BATCHES[0])
    engine.train_batch(inputs, target)
    engine.step()


FOUND = {"class names": rates(of_class_names, "shard=2"), "types": rates(of_types, "shard=2")}
class Masked(nn.Linear):
    '''Changes its weight in forward, in one of several ways.'''

    def __init__(self, how):
        super().__init__(4, 4)
        self.how, self.calls = how, 0
        self.register_buffer("mask", torch.ones(4, 4).tril())

    def forward(self, x):
        self.calls += 1
        if self.how == "data":
            self.weight.data *= self.mask
        elif self.how == "assigned":
            self.weight.data = self.weight.data.clamp(min=0)
        elif self.how == "no grad" and self.calls > 2:
            with torch.no_grad():
                self.weight.mul_(self.mask)
        elif self.how == "computed":
            return nn.functional.linear(x, self.weight * self.mask, self.bias)
        return super().forward(x)


class Stack(nn.Module):
    def __init__(self, how, count):
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Masked(how) for _ in range(count)), nn.Linear(4, 2)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def changed(how, count, layout="shard=2"):
    torch.manual_seed(5)
    try:
        engine = Engine({"layout": layout, "checks": {"first_step": how != "data"}})
        engine.setup(Stack(how, count), adamw, loss=mse_loss)
        for inputs, target in BATCHES:
            engine.train_batch(*(each.chunk(2)[engine.world.sample_part] for each in (inputs, target)))
            engine.step()
        return engine.steps
    except UsageError as error:
        return str(error)


FOUND["changed"] = {f"{how} {count}": changed(how, count)
                    for how in ("data", "assigned", "no grad", "computed") for count in (1, 2)}
FOUND["returned"] = returned(""), returned("shard=2")
FOUND["complex"] = refused(Complex(), lambda model: None)
FOUND["hook"] = refused(scaled(), hook)
with Engine({"layout": "shard=2"}) as engine:
    named, own = scaled(), type(scaled())
    model, _ = engine.setup(named, adamw, loss=loss_of)
    FOUND["named"] = [model._get_name(), own.__name__, type(model).__module__, own.__module__]
FOUND["average"], FOUND["limit"] = refused(scaled(), average), refused(scaled(), limit)
for clip in ("", "recipe"):
    FOUND[clip] = by_hand(clip), by_engine("shard=2", clip)
FOUND["resumed"] = by_hand(""), by_engine("shard=2", "", resumes=True)
finish(FOUND)
"""


@pytest.fixture(scope="module")
def scalars(tmp_path_factory):
    return results_of(SCALARS, 2, tmp_path_factory.mktemp("scalars"))


@pytest.mark.parametrize("case", ["", "recipe", "resumed"])
def test_scalar_parameters_train_as_on_one_process(scalars, case):
    one, several = scalars[case]
    for expected, found in zip(one, several, strict=True):
        assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("case", "fast"), [("class names", ("blocks.0.gain", "scale")), ("types", ("blocks.0.gain", "blocks.1.gain"))]
)
def test_an_optimizer_finds_the_classes_that_modules_had_before_setup(scalars, case, fast):
    rates = scalars[case]
    assert all(rates[name] == 0.5 for name in fast)
    assert rates["head.weight"] == rates["blocks.0.up.weight"] == 0.01


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("complex", "mix is a complex parameter"),
        ("average", "ema.decay (--ema) for an average"),
        ("hook", "the gradient hook of head.weight is not called"),
        ("limit", "torch cannot apply an operator to a tensor that is split over ranks"),
    ],
)
def test_what_split_parameters_cannot_do_is_refused_with_a_way_out(scalars, case, says):
    assert says in scalars[case]


def test_a_class_keeps_its_name(scalars):
    name, own, module, own_module = scalars["named"]
    assert (name, module) == (own, own_module)


def test_a_model_may_return_its_parameters(scalars):
    one, several = scalars["returned"]
    assert several == pytest.approx(one, rel=1e-5)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("how", ["data", "assigned", "no grad"])
def test_a_forward_pass_that_changes_weights_is_refused(scalars, how, count):
    assert "changes its parameter" in scalars["changed"][f"{how} {count}"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_forward_pass_that_computes_another_weight_trains(scalars, count):
    assert scalars["changed"][f"computed {count}"] == 5
