"""Do optimizers whose kernels take lists of parameters, the default on CUDA, step where tp splits some of them?"""

from __future__ import annotations

import pytest
from tests.train.launching import results_of

PROGRAM = """
import json, sys
from pathlib import Path
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from paceline.core.errors import PacelineError
from paceline.train import Engine
from tests.train.mlp_block import Block

OUT = Path(sys.argv[1])
DRAWN = torch.Generator().manual_seed(0)
INPUTS, TARGET = torch.randn(8, 8, generator=DRAWN), torch.arange(8) % 4
CLIP = 0.1


def net():
    torch.manual_seed(0)
    return nn.Sequential(Block(), nn.LayerNorm(8), Block(), nn.Linear(8, 4))


def of_groups(**options):
    def made(model):
        norms = list(model[1].parameters())
        others = [p for p in model.parameters() if all(p is not norm for norm in norms)]
        return torch.optim.AdamW([{"params": others}, {"params": norms, "weight_decay": 0.0}], lr=1e-2, **options)

    return made


class Scaled(torch.optim.Optimizer):
    # scales each update by the norms of its parameter, as LAMB, and reads the norms as numbers, in several ways
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-2})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                own, other = p.norm().item(), float(p.grad.norm())
                share = int((p > 0).sum()) / p.numel() + (1.0 if (p.grad.abs().sum() > 0) else 0.0)
                p.add_(p.grad, alpha=-group["lr"] * share * own / (other + 1e-6) - p.mean().item())


def add_noise(groups):
    torch.manual_seed(7)
    for group in groups:
        for p in group["params"]:
            p.add_(torch.randn_like(p), alpha=1e-3)


class Langevin(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-2})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                p.add_(p.grad, alpha=-group["lr"])
        add_noise(self.param_groups)


class NoisyAdamW(torch.optim.AdamW):
    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        add_noise(self.param_groups)


MAKERS = {
    "noise": lambda model: Langevin(model.parameters()),
    "noise after AdamW": lambda model: NoisyAdamW(model.parameters(), lr=1e-2, foreach=True),
    "numbers read in the step": lambda model: Scaled(model.parameters()),
    "AdamW foreach": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True),
    "AdamW fused": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True),
    "Adam foreach": lambda model: torch.optim.Adam(model.parameters(), lr=1e-2, foreach=True),
    "SGD foreach": lambda model: torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, foreach=True),
    "two groups": of_groups(foreach=True),
    "Adafactor": lambda model: torch.optim.Adafactor(model.parameters()),
    "Rprop": lambda model: torch.optim.Rprop(model.parameters()),
}


def schedule(updates):
    return torch.optim.lr_scheduler.LambdaLR(updates, lambda step: 1 / (1 + step))


def expected(make):
    model = net()
    updates = make(model)
    rate = schedule(updates)
    for _ in range(4):
        cross_entropy(model(INPUTS), TARGET).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        updates.step()
        updates.zero_grad()
        rate.step()
    return model


def difference(name, make):
    def engine():
        engine = Engine({"layout": "tp=2", "optimizer": {"clip_norm": CLIP}})
        model, updates = engine.setup(net(), make, loss=cross_entropy, schedule=schedule)
        return engine, model, updates

    first, model, updates = engine()
    groups = len(updates.param_groups)
    for step in range(4):
        if step == 2:
            first.save(OUT.parent / name)
            first, model, updates = engine()
            first.load(OUT.parent / name)
        first.train_batch(INPUTS, TARGET)
        first.step()
    assert len(updates.param_groups) == groups
    wanted = dict(expected(make).named_parameters())
    state = {key: p.full_tensor() if hasattr(p, "full_tensor") else p for key, p in model.named_parameters()}
    return max((wanted[key] - value).abs().max().item() for key, value in state.items())


torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
found = {}
for name, make in MAKERS.items():
    try:
        found[name] = difference(name, make)
    except (RuntimeError, PacelineError) as error:
        found[name] = str(error)
if torch.distributed.get_rank() == 0:
    OUT.write_text(json.dumps(found))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return results_of(PROGRAM, 2, tmp_path_factory.mktemp("optimizers"), timeout_s=240)


@pytest.mark.parametrize(
    "name",
    ["AdamW foreach", "AdamW fused", "Adam foreach", "SGD foreach", "two groups", "numbers read in the step", "noise"],
)
def test_split_and_whole_parameters_step_as_on_one_process(found, name):
    """Clipped, with a schedule, and gone on from a checkpoint after two of four steps."""
    assert isinstance(found[name], float), found[name]
    assert found[name] < 5e-6


def test_an_optimizer_that_draws_in_another_order_is_refused(found):
    """A foreach kernel of torch cannot update split and whole parameters together, so their order changes."""
    assert "NoisyAdamW draws random numbers in step()" in found["noise after AdamW"]


@pytest.mark.parametrize("name", ["Adafactor", "Rprop"])
def test_an_optimizer_that_torch_cannot_run_on_split_parameters_is_refused(found, name):
    assert f"{name} cannot update parameters that are split over ranks: " in found[name]
    assert "use another optimizer, such as AdamW" in found[name]
