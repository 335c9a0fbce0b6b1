"""Optimizers that torch does not make fused or foreach: the program's own is made, and the reason is told."""

from __future__ import annotations

import pytest

MADE = """
import torch
from torch.utils.checkpoint import checkpoint
torch.set_num_threads(1)
torch.manual_seed(0)
{model}
optimizer = {optimizer}
for _ in range(2):
    {loss}.backward()
    optimizer.step()
    optimizer.zero_grad()
print([group.get("fused") for group in optimizer.param_groups], [len(g["params"]) for g in optimizer.param_groups])
print(sum(p.sum().item() for p in model.parameters() if p.is_floating_point()).hex())
"""
LINEAR = {"model": "model = torch.nn.Linear(4, 4)", "loss": "model(torch.ones(2, 4)).square().sum()"}
SPARSE = {
    "model": "model = torch.nn.Embedding(8, 4, sparse=True)",
    "loss": "model(torch.tensor([1, 2])).square().sum()",
}
MIXED = {
    "model": "model = torch.nn.Linear(4, 4); model.n = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))",
    "loss": "(model(torch.ones(2, 4)).square().sum() + model.n.abs().sum())",
}
SUBCLASS = {
    "model": "class Part(torch.Tensor): pass\n"
    "model = torch.nn.Linear(4, 4); model.part = torch.nn.Parameter(torch.ones(3).as_subclass(Part))",
    "loss": "(model(torch.ones(2, 4)).square().sum() + model.part.sum())",
}


@pytest.mark.parametrize(
    "program, optimizer, reason",
    [
        (SPARSE, "torch.optim.SGD(model.parameters(), lr=0.1)", "sparse"),
        (MIXED, "torch.optim.Adam(model.parameters())", "floating-point"),
        (SUBCLASS, "torch.optim.AdamW(list(model.parameters()))", "another class"),
        (LINEAR, "torch.optim.Adam([{'params': model.parameters(), 'fused': False}])", "itself"),
        (LINEAR, "torch.optim.Adam(model.parameters(), differentiable=False, maximize=True)", None),
        (LINEAR, "torch.optim.SGD(params=model.named_parameters(), lr=0.1)", None),
    ],
    ids=["sparse", "complex", "subclass", "group", "iterator", "named"],
)
def test_fused_is_left_out_where_torch_would_refuse_it(ran, program, optimizer, reason):
    source = MADE.format(optimizer=optimizer, **program)
    changed = ran(source, {"optimizer": {"fused": True}})
    assert changed.code == 0, changed.err
    if reason is None:
        assert "fused=True" in changed.held["optimizer.fused"]
        assert changed.out.startswith("[True]")
    else:
        assert changed.out == ran(source).out
        assert reason in changed.refused["optimizer.fused"]


def test_foreach_is_left_out_of_a_differentiable_optimizer(ran):
    source = """
    import torch
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, differentiable=True)
    print(optimizer.defaults["foreach"], optimizer.defaults["differentiable"])
    """
    changed = ran(source, {"optimizer": {"foreach": True}})
    assert (changed.code, changed.out) == (0, "None True\n"), changed.err
    assert "differentiable" in changed.refused["optimizer.foreach"]
