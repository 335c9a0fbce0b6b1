"""Apply each operator in torch's table of test samples to sharded and to whole tensors, and print different results.

python operators.py WAY TYPE ...

WAY is "function", "method", "inplace" or "second" (a sharded tensor is given after a plain one).
"""

from __future__ import annotations

import math
import sys
import warnings

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

warnings.simplefilter("ignore")
MOST = 2  # samples of each operator and type
# Operators without defined values, of other layouts, with several right results, refused ones, and those of buffers.
LEFT_OUT = (
    "empty",
    "jiterator",
    "lowrank",
    "sparse",
    "lstsq",
    "nonzero_static",
    "geqrf",
    "batch_norm",
    "ormqr",
    "householder",
)
SHAPING = ("squeeze", "unsqueeze", "transpose", "t", "as_strided", "swapaxes", "addbmm")


def mesh():
    torch.manual_seed(0)
    model = nn.Linear(4, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    return model.weight.device_mesh


def is_usable(value):
    return isinstance(value, torch.Tensor) and value.dim() and value.layout == torch.strided and value.numel()


def plain(value):
    if isinstance(value, DTensor):
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            return value.full_tensor().detach().clone()
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def sharded(value, over):
    with torch._C.DisableTorchFunctionSubclass():
        return distribute_tensor(value.detach().clone(), over, [Shard(0)])


def differs(one, other):
    """Return the first difference, or None. All ranks compare all leaves, because gathering a leaf needs all."""
    pairs = list(zip(map(plain, tree_leaves(one)), map(plain, tree_leaves(other)), strict=False))
    for found, true in pairs:
        if isinstance(true, torch.Tensor):
            try:
                torch.testing.assert_close(found, true, rtol=1e-4, atol=1e-5, equal_nan=True)
            except AssertionError as error:
                return str(error).splitlines()[0]
        elif isinstance(true, int | float) and found != true and not math.isnan(true):
            return f"{found} for {true}"
    return None


def places(way, sample):
    """The sharded version of the arguments of a sample, or None."""
    given = (sample.input, *sample.args)
    usable = [place for place, value in enumerate(given) if is_usable(value)]
    if way == "second":
        return next(([place] for place in usable if place > 0), None)
    return [0] if 0 in usable else None


def check(function, name, way, sample, over):
    at = places(way, sample)
    if at is None:
        return 0
    given = (sample.input, *sample.args)
    whole = tree_map(plain, given)
    split = tuple(sharded(value, over) if place in at else plain(value) for place, value in enumerate(given))
    with torch.no_grad():
        try:
            torch.manual_seed(3)
            true = function(*whole, **sample.kwargs)
        except Exception:  # also an error with whole tensors
            return 0
        try:
            torch.manual_seed(3)
            found = function(*split, **sample.kwargs)
        except Exception as error:
            print("FAILED", name, way, given[0].shape, type(error).__name__, str(error).splitlines()[0])
            return 1
    of_result, of_inputs = differs(found, true), differs(split, whole)
    if of_result or of_inputs:
        print("DIFFERS", name, way, given[0].shape, of_result or of_inputs)
    return 1


if __name__ == "__main__":
    way, types = sys.argv[1], [getattr(torch, name) for name in sys.argv[2:]]
    over, tried = mesh(), 0
    for operator in op_db:
        attribute = {"inplace": "inplace_variant", "method": "method_variant"}.get(way, "op")
        function = getattr(operator, attribute)
        if function is None or any(word in operator.name for word in LEFT_OUT):
            continue
        if operator.name.startswith("resize_") or way == "inplace" and operator.name in SHAPING:
            continue
        for kind in types:
            if operator.supports_dtype(kind, "cpu"):
                torch.manual_seed(1)
                samples = list(operator.sample_inputs("cpu", kind))[:MOST]
                tried += sum(check(function, operator.name, way, sample, over) for sample in samples)
    print("tried", tried)
