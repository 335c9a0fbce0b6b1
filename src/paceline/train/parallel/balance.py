"""Where is a row of layers cut, so that its stages cost alike? The dearest stage sets the pace of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence


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
