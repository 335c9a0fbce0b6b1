"""Cuts a sequence of layers into pipeline stages so that the most expensive stage costs as little as possible."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import Any

_TIMES = 5  # runs of a layer; the minimum is taken, because disturbances only add time


def cut(costs: Sequence[float], stages: int) -> list[range]:
    """Cut a sequence of layers into stages so that the most expensive stage costs as little as possible.

    Args:
        costs: The cost of each layer, in any unit; 0 is allowed.
        stages: The number of stages, at most the number of layers. No stage is empty.

    Returns:
        The indices of the layers of each stage.
    """
    count = len(costs)
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    # best[k][end]: least cost of the costliest stage of the first `end` layers in k + 1 stages; start of the last stage
    best = [[(sums[end], 0) for end in range(count + 1)]]
    for stage in range(1, stages):
        earlier = best[-1]
        row = [(float("inf"), 0)] * (count + 1)
        for end in range(stage + 1, count + 1):
            row[end] = min((max(earlier[begin][0], sums[end] - sums[begin]), begin) for begin in range(stage, end))
        best.append(row)
    ends = [count]
    for row in reversed(best):
        ends.append(row[ends[-1]][1])
    ends.reverse()
    return [range(begin, end) for begin, end in zip(ends, ends[1:], strict=False)]


def counted(layer: Any) -> float:
    """Return the forward FLOPs of a layer per position of the sequence, counted from its weights."""
    from torch import nn

    products = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return float(sum(2 * part.weight.numel() for part in layer.modules() if isinstance(part, products)))


def measured(layers: Sequence[Any], sample: Any) -> list[float]:
    """Return the seconds that forward and backward of each layer take: the minimum of five runs.

    Args:
        layers: The layers in order. Copies of them run, so the layers and the random state do not change.
        sample: The input tensor of the first layer, on the device of the layers.
    """
    import torch

    costs, value = [], sample
    with torch.random.fork_rng(), torch.enable_grad():
        for layer in layers:
            own = copy.deepcopy(layer)
            costs.append(min(_timed(own, value) for _ in range(_TIMES)))
            with torch.no_grad():
                value = own(value)
    return costs


def _timed(layer: Any, value: Any) -> float:
    import torch

    given = value.detach().requires_grad_(value.is_floating_point())
    _finish(torch, value)
    began = time.perf_counter()
    result = layer(given)
    if result.requires_grad:
        result.sum().backward()
    _finish(torch, value)
    return time.perf_counter() - began


def _finish(torch: Any, value: Any) -> None:
    """Wait until a GPU has completed its work."""
    if value.is_cuda:
        torch.cuda.synchronize(value.device)
