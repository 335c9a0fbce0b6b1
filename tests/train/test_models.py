"""Do models that people write train on two ranks as on one: BatchNorm, shared parts, dropout, resuming?"""

from __future__ import annotations

import pytest
from tests.train.launching import results_of

PROGRAM = """
import json, sys
from pathlib import Path
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from paceline.train import Engine

OUT = Path(sys.argv[1])
DRAWN = torch.Generator().manual_seed(0)
IMAGES, ROWS = torch.randn(48, 3, 6, 6, generator=DRAWN), torch.randn(48, 8, generator=DRAWN)
LABELS = torch.randint(0, 4, (48,), generator=DRAWN)
RAGGED = LABELS.clone()
RAGGED[20:24] = -100  # the second half of the third batch has no target


class Block(nn.Module):
    def __init__(self, up=None, dropout=0.0):
        super().__init__()
        self.fc1, self.act, self.fc2 = up or nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.drop(self.fc2(self.act(self.fc1(x))))


def images():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, bias=False),
        nn.BatchNorm2d(8, momentum=None), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4),
    ).to(memory_format=torch.channels_last)


def rows(shared=False, dropout=0.0):
    torch.manual_seed(0)
    up = nn.Linear(8, 16) if shared else None
    return nn.Sequential(*(Block(up, dropout) for _ in range(3)), nn.Linear(8, 4))


def spare():
    model = rows()
    model[0].spare = nn.Linear(2, 2)
    return model


def of_valid(output, target):
    return cross_entropy(output, target, ignore_index=-100)


def valid(target):
    return (target != -100).sum()


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def whole(state):
    return {k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in state.items()}


def against_one(layout, make, inputs, target, weight=None, shuffle=False, **recipe):
    model = make()
    torch.manual_seed(2)
    optimizer, losses = adam(model), []
    for batch in DataLoader(TensorDataset(inputs, target), 8, shuffle=shuffle):
        parts = zip(*(value.chunk(2 if "pp" in layout else 1) for value in batch))
        loss = torch.stack([of_valid(model(values), wanted) for values, wanted in parts]).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if "pp" in layout:  # the same parts of batches, one after the other
        recipe["memory"] = {"micro_batches": 2}
    engine, made, found = Engine({"layout": layout, **recipe}), make(), []
    torch.manual_seed(2)
    trained, _ = engine.setup(made, adam, loss=of_valid, weight=weight)
    for batch in engine.loader(DataLoader(TensorDataset(inputs, target), 8, shuffle=shuffle)):
        engine.train_batch(*batch)
        found.append(engine.loss())
        engine.step()
    state, expected = whole(getattr(trained, "module", trained).state_dict()), model.state_dict()
    off = torch.stack([(value.float() - expected[name].float()).abs().max() for name, value in state.items()]).max()
    torch.distributed.all_reduce(off, torch.distributed.ReduceOp.MAX)
    off = off.item()
    return max([off, *(abs(one - other) if other == other else 9 for one, other in zip(losses, found))])


def resumed(layout):
    def engine_and_loader():
        torch.manual_seed(1)
        engine = Engine({"layout": layout})
        _, updates = engine.setup(
            rows(dropout=0.3), adam, loss=of_valid,
            schedule=lambda updates: torch.optim.lr_scheduler.MultiStepLR(updates, [2, 4], 0.1),
        )
        return engine, updates, engine.loader(DataLoader(TensorDataset(ROWS, LABELS), 8, shuffle=True))

    def losses(engine, batches, steps):
        found = []
        for _ in range(steps):
            engine.train_batch(*next(batches))
            found.append(engine.loss())
            engine.step()
        return found

    engine, updates, loader = engine_and_loader()
    batches = iter(loader)
    losses(engine, batches, 3)
    engine.save(OUT.parent / layout)
    on = losses(engine, batches, 3)
    again, other, loader = engine_and_loader()
    torch.manual_seed(9)
    again.load(OUT.parent / layout)
    return [on, updates.param_groups[0]["lr"]] == [losses(again, iter(loader), 3), other.param_groups[0]["lr"]]


torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
result = {}
for layout in ("dp=2", "shard=2"):
    result[f"{layout} images"] = against_one(layout, images, IMAGES, LABELS)
    result[f"{layout} shared"] = against_one(layout, lambda: rows(shared=True), ROWS, LABELS)
    result[f"{layout} nothing"] = against_one(layout, rows, ROWS, RAGGED, valid)
result["dp=2 unused"] = against_one("dp=2", spare, ROWS, LABELS, ddp={"find_unused_parameters": True})
result["tp=2 dropout"] = against_one("tp=2", lambda: rows(dropout=0.3), ROWS, LABELS, shuffle=True)
result["pp=2 images"] = against_one("pp=2", images, IMAGES, LABELS)
result["resumed"] = {layout: resumed(layout) for layout in ("dp=2", "shard=2", "tp=2")}
if torch.distributed.get_rank() == 0:
    OUT.write_text(json.dumps(result))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return results_of(PROGRAM, 2, tmp_path_factory.mktemp("models"), timeout_s=240)


@pytest.mark.parametrize("layout", ["dp=2", "shard=2"])
@pytest.mark.parametrize("what", ["images", "shared", "nothing"])
def test_losses_weights_and_buffers_are_those_of_one_process(found, layout, what):
    """Images: BatchNorm in channels-last. Shared: blocks with one layer. Nothing: a rank whose part has no target."""
    assert found[f"{layout} {what}"] < 1e-5


def test_stages_keep_the_statistics_of_batches_alone(found):
    assert found["pp=2 images"] < 1e-5


def test_weights_without_a_part_in_the_loss_stay_as_they_are(found):
    assert found["dp=2 unused"] < 1e-5


def test_ranks_that_split_matrices_drop_the_same_out_as_one_process(found):
    assert found["tp=2 dropout"] < 1e-5


@pytest.mark.parametrize("layout", ["dp=2", "shard=2", "tp=2"])
def test_a_run_goes_on_to_the_bit_with_dropout_and_a_rate_that_falls_at_steps(found, layout):
    assert found["resumed"][layout]
