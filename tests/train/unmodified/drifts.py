"""Programs whose ranks come apart: each prints the exit code that it would have ended with."""

from __future__ import annotations

import json
import os
import sys

import numpy
import torch
from torch import nn
from torch.nn.functional import cross_entropy

torch.manual_seed(0)
X = torch.randn(64, 12)
Y = (X.sum(1) > 0).long()
RANK = json.loads(os.environ.get("PACELINE_RANK", '{"rank": 0}'))["rank"]
KEPT = []


class WrongOnOneReplica(torch.optim.SGD):
    """An update that is computed wrongly on one of two replicas, as by a fault of the device."""

    def step(self, closure=None):
        found = super().step(closure)
        if RANK == 2:
            self.param_groups[0]["params"][0]._local_tensor.data += 1e-3
        return found


def fit(lr, steps=10, after=lambda model, optimizer, step: None, rule=torch.optim.SGD):
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = rule(model.parameters(), lr=lr)
    for step in range(steps):
        place = step * 8 % 56
        loss = cross_entropy(model(X[place : place + 8]), Y[place : place + 8])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after(model, optimizer, step)


def unseeded_generator():
    fit(float(numpy.random.default_rng().uniform(0.1, 0.2)), 70)


def drawn_rate():
    fit(0.1 + int.from_bytes(os.urandom(2), "little") / 1e6)


def other_rate_later():
    def after(model, optimizer, step):
        if step == 10:
            optimizer.param_groups[0]["lr"] = 0.1 + RANK

    fit(0.1, 130, after)


def noise_in_weights():
    def after(model, optimizer, step):
        with torch.no_grad():
            model[0].weight += 1e-3 * RANK

    fit(0.1, 10, after)


def noise_in_a_replica():
    def after(model, optimizer, step):
        if RANK == 2:
            model[0].weight._local_tensor.data += 1e-3  # as a fault of memory or of a link would

    fit(0.1, 10, after)


def wrong_update_of_a_replica():
    fit(0.1, 10, rule=WrongOnOneReplica)


def bit_of_a_piece():
    def after(model, optimizer, step):
        if step == 3 and RANK == 1:  # once, as a fault of memory would
            piece = model[2].weight._local_tensor.data.view(torch.int32)
            piece[0, 0] ^= 1 << 20

    fit(0.1, 10, after)


def bit_of_a_gathered_weight():
    """The rank 1 computes with another weight than the others."""
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    original = FSDPParamGroup.wait_for_unshard

    def wait_for_unshard(self, *args, **kwargs):
        found = original(self, *args, **kwargs)
        if RANK == 1 and self.fsdp_params:
            self.fsdp_params[0]._unsharded_param.data.view(torch.int32)[0, 0] ^= 1 << 12
        return found

    FSDPParamGroup.wait_for_unshard = wait_for_unshard
    try:
        fit(0.1, 4)
    finally:
        FSDPParamGroup.wait_for_unshard = original


def other_momentum():
    fit(0.1, 1, lambda model, optimizer, step: optimizer.param_groups[0].update(momentum=0.5 * RANK))
    fit(0.1, 70, lambda model, optimizer, step: optimizer.param_groups[0].update(momentum=0.5 * RANK))


def at_the_end():
    def after(model, optimizer, step):
        KEPT[:] = [optimizer]  # an optimizer that is gone before the program ends is not compared at the end
        if step == 8:
            with torch.no_grad():
                model[0].weight += 1e-3 * RANK

    fit(0.1, 9, after)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        sys.stderr.write(f"\n{name}: ")
        try:
            globals()[name]()
            print(name, 0, flush=True)
        except SystemExit as ending:
            print(name, ending.code, flush=True)
    sys.stderr.write("\nend: ")
