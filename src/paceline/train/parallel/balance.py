"""Where is a row of layers cut, so that its stages cost alike? The dearest stage sets the pace of a pipeline."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import Any

_TIMES = 5  # a layer is run; what disturbs it only adds


def cut(costs: Sequence[float], stages: int) -> list[range]:
    """Cut a row into stages with the least possible cost of the dearest one.

    Args:
        costs: Of each layer, in any unit, 0 allowed.
        stages: At most as many as there are layers; none is empty.

    Returns:
        The layers of each stage.
    """
    count = len(costs)
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    # best[k][end]: least cost of the dearest stage of the first `end` layers in k + 1 stages, and where the last begins
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
    """Return FLOPs of a layer's forward per position of the sequence."""
    from torch import nn

    products = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return float(sum(2 * part.weight.numel() for part in layer.modules() if isinstance(part, products)))


def measured(layers: Sequence[Any], sample: Any) -> list[float]:
    """Return the seconds that forward and backward of each layer take, one after the other: the least of five times.

    Args:
        layers: A row; copies of them are run, in which nothing of theirs is changed. Random numbers stay as they are.
        sample: What the first one is called with: a tensor, on the device of the layers.
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
    """Wait for what was given to a GPU."""
    if value.is_cuda:
        torch.cuda.synchronize(value.device)
