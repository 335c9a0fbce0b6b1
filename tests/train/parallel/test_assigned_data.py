"""An assignment to `data` of a split tensor has the effect that it has on one process, or raises an error."""

from __future__ import annotations

import pytest
from tests.train.launching import results_of

PROGRAM = """
import copy, json, sys
from pathlib import Path
import torch
from torch import nn
from torch.distributed.tensor import Replicate
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset
from paceline.core.errors import UsageError
from paceline.train import Engine
from tests.train.mlp_block import Block

OUT, LAYOUT = Path(sys.argv[1]), sys.argv[2]


def set_data(value, new):
    value.data = new


def swap_and_restore(p, q):
    backup, shadow = p.data, p.data * 3
    p.data = shadow
    p.data.add_(1)
    q.data = shadow.sum() * q.data
    p.data = backup
    return [shadow]


def change_value_after(p, q):
    value = p.data * 2
    p.data = value
    value.add_(1)
    p.data.mul_(3)
    return [value]


def change_old_after(p, q):
    old = p.data
    p.data = p.data + 1
    old.mul_(5)
    return [old]


def gradient(p, q):
    p.grad = torch.ones_like(p)
    p.grad.data = p.data * 2
    return [p.grad]


ASSIGNMENTS = {
    "scaled": lambda p, q: set_data(p, p.data * 0.5),
    "clamped": lambda p, q: set_data(p, p.data.clamp(-0.1, 0.1)),
    "average": lambda p, q: set_data(p, p.data * 0.9 + q.data * 0.1),
    "itself": lambda p, q: set_data(p, p.data),
    "gathered": lambda p, q: set_data(p, everywhere(p.data * 2)),
    "copy": lambda p, q: set_data(p, copy.deepcopy(q).data),
    "swap and restore": swap_and_restore,
    "change value after": change_value_after,
    "change old after": change_old_after,
    "gradient": gradient,
    "other data": lambda p, q: (set_data(p, q.data), q.data.add_(1))[:0],
    "whole tensor": lambda p, q: set_data(p, torch.ones(p.shape)),
    "other shape": lambda p, q: set_data(p, p.data[:, :2] * 2),
    "other dtype": lambda p, q: set_data(p, p.data.double()),
}


def everywhere(value):
    return value.redistribute(placements=[Replicate()] * value.device_mesh.ndim) if is_split(value) else value


def is_split(value):
    return hasattr(value, "placements")


def whole(value):
    return (value.full_tensor() if is_split(value) else value).detach().clone()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.odd = nn.ModuleList([Block(), Block()]), nn.ModuleList([nn.Linear(8, 5), nn.Linear(8, 5)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.odd[0](x) + self.odd[1](x)


PAIRS = [("blocks.0.fc1.weight", "blocks.1.fc1.weight"), ("odd.0.weight", "odd.1.weight")]


def difference(name, pair):
    split, one = [dict(each.named_parameters()) for each in (model, alone)]
    for key, value in one.items():
        value.grad = None
        value.data = whole(split[key])
    try:
        kept = ASSIGNMENTS[name](*[split[key] for key in pair]) or []
    except UsageError as error:
        return str(error)
    expected = ASSIGNMENTS[name](*[one[key] for key in pair]) or []
    with torch.no_grad():
        outputs = [(model(INPUTS), alone(INPUTS))]
    found = [*zip(kept, expected), *[(split[key], one[key]) for key in pair], *outputs]
    return max(((whole(mine) - own).abs().max() / own.abs().max().clamp(min=1)).item() for mine, own in found)


torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
INPUTS, TARGET = torch.randn(8, 8), torch.randn(8, 5)
alone = Net()
engine = Engine({"layout": LAYOUT})
model, _ = engine.setup(copy.deepcopy(alone), lambda model: torch.optim.SGD(model.parameters(), 0.1), loss=mse_loss)
for inputs, target in engine.loader(DataLoader(TensorDataset(INPUTS, TARGET), 8)):
    engine.train_batch(inputs, target)
    engine.step()
own = dict(model.named_parameters())
pairs = [pair for pair in PAIRS if is_split(own[pair[0]])]
found = {name: [difference(name, pair) for pair in pairs] for name in ASSIGNMENTS}
if torch.distributed.get_rank() == 0:
    OUT.write_text(json.dumps(found))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""
REFUSED = {
    "other data": "copy the values with parameter.data.copy_(other.data)",
    "whole tensor": "a whole tensor was assigned to .data of a tensor that is split over ranks",
    "other shape": "a tensor with shape [",
    "other dtype": "a tensor with dtype torch.float64 was assigned to .data of a tensor with dtype torch.float32",
}
MAY_BE_RIGHT = "other data"  # where FSDP2 needs no room at the end of the memory of a rank


@pytest.mark.parametrize(("layout", "ranks"), [("shard=2", 2), ("tp=2", 2), ("dp=2,shard=2", 4), ("shard=2,tp=2", 4)])
def test_each_assignment_has_the_effect_of_one_process_or_is_refused(layout, ranks, tmp_path):
    wrong = {}
    for name, differences in results_of(PROGRAM, ranks, tmp_path, layout).items():
        for difference in differences:
            if isinstance(difference, str):
                right = name in REFUSED and REFUSED[name] in difference
            else:
                right = difference < 1e-5 and (name not in REFUSED or name == MAY_BE_RIGHT)
            if not right:
                wrong[name] = differences
    assert wrong == {}
