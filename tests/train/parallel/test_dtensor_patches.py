"""A number that is read from a split gradient equals the number of one process, or the read raises an error."""

from __future__ import annotations

import pytest
from tests.train.launching import results_of

PROGRAM = """
import json, sys
from pathlib import Path
import torch
from torch import nn
from torch.nn.functional import mse_loss
from paceline.core.errors import UsageError
from paceline.train import Engine
from tests.train.mlp_block import Block

OUT, LAYOUT = Path(sys.argv[1]), sys.argv[2]
DRAWN = torch.Generator().manual_seed(0)
INPUTS, TARGET = torch.randn(8, 8, generator=DRAWN), torch.randn(8, 8, generator=DRAWN)
READS = {
    "item": lambda value: value.norm().item(),
    "float": lambda value: float(value.sum()),
    "int": lambda value: int((value > 0).sum()),
    "bool": lambda value: bool((value > 0).sum() > 40),
    "tolist": lambda value: value.tolist(),
    "numpy": lambda value: float(value.detach().numpy().sum()),
    "format": lambda value: f"{value.abs().max():.3f}",
    "full": lambda value: value.norm().full_tensor().item() if hasattr(value, "full_tensor") else value.norm().item(),
    "of a whole one": lambda value: whole.grad.norm().item(),
}


def net():
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block())


def read(name, value):
    try:
        return READS[name](value)
    except UsageError as error:
        return str(error)


torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
one = net()
mse_loss(one(INPUTS), TARGET).backward()
whole = one[0].norm.weight
wanted = {name: read(name, one[0].fc1.weight.grad) for name in READS}
clipped = nn.utils.clip_grad_norm_(one.parameters(), 0.1).item()

engine = Engine({"layout": LAYOUT})
model, updates = engine.setup(net(), lambda model: torch.optim.SGD(model.parameters(), lr=0.1), loss=mse_loss)
for batch in engine.split((INPUTS, TARGET)):
    with engine.micro_step():
        engine.backward(mse_loss(model(batch[0]), batch[1]))
named = dict(model.named_parameters())
whole = named["0.norm.weight"]
found = {name: read(name, named["0.fc1.weight"].grad) for name in READS}
try:
    found["clipped"] = nn.utils.clip_grad_norm_(model.parameters(), 0.1).item()
except UsageError as error:
    found["clipped"] = str(error)
if torch.distributed.get_rank() == 0:
    OUT.write_text(json.dumps([wanted | {"clipped": clipped}, found]))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""
REFUSED = "would return the number of this rank's part"


@pytest.fixture(scope="module", params=["shard=2", "tp=2"])
def found(request, tmp_path_factory):
    wanted, read = results_of(PROGRAM, 2, tmp_path_factory.mktemp("reads"), request.param, timeout_s=240)
    return request.param, wanted, read


@pytest.mark.parametrize("name", ["item", "float", "int", "tolist", "numpy", "format"])
def test_a_number_of_one_part_is_refused_outside_of_steps(found, name):
    _, _, read = found
    assert REFUSED in str(read[name])


def test_a_comparison_is_of_the_whole_value(found):
    _, wanted, read = found
    assert read["bool"] is wanted["bool"] is True


def test_whole_values_are_read(found):
    layout, wanted, read = found
    assert read["full"] == pytest.approx(wanted["full"], rel=1e-5)
    if layout == "tp=2":
        assert read["of a whole one"] == pytest.approx(wanted["of a whole one"], rel=1e-5)


def test_the_norm_by_which_gradients_are_clipped(found):
    layout, wanted, read = found
    if layout == "tp=2":
        assert "cannot combine gradients that are split over ranks with whole ones" in read["clipped"]
    else:
        assert read["clipped"] == pytest.approx(wanted["clipped"], rel=1e-5)
