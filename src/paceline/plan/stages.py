"""Which blocks does each stage of a pipeline have, and what does it keep? All cost alike, the output layer counted.

The dearest stage sets the pace, so a row of L blocks and an output layer that costs h of them is cut into S stages with
the least cost of the dearest one: n whole blocks, or the output layer with j blocks. `paceline.train` cuts by the same
rule. The embedding looks up rows and takes no time; its weights are counted where it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.plan.columns import Columns, Floats


@dataclass(frozen=True, kw_only=True)
class Place:
    """What one rank of a pipeline has, each of shape (cases,).

    Attributes:
        blocks: On all its stages.
        kept: Micro-batches whose activations it keeps at its peak.
        logits: Micro-batches whose logits it keeps.
        ends: Share of the weights of the embedding and the output layer.
    """

    blocks: Floats
    kept: Floats
    logits: Floats
    ends: Floats


def spread(layers: int, head: float, stages: int) -> tuple[int, ...]:
    """Return the blocks of each stage, the output layer after the last one.

    Args:
        layers: Blocks in all, at least as many as stages.
        head: What the output layer costs, in blocks.
        stages: At least one.
    """
    last = int(_last(np.array(float(layers)), np.array(head), np.array(float(stages))))
    if stages == 1:
        return (layers,)
    each, over = divmod(layers - last, stages - 1)
    return (*[each] * (stages - 1 - over), *[each + 1] * over, last)


def _last(layers: Floats, head: Floats, stages: Floats) -> Floats:
    """Blocks of the last stage, beside the output layer."""
    whole = np.maximum(np.ceil((layers + np.ceil(head)) / stages), np.ceil(head))  # the dearest has whole blocks only
    beside = np.maximum(0.0, np.ceil((layers - (stages - 1) * np.floor(head)) / stages))  # or the output layer
    best: Floats = np.where(whole <= head + beside, np.floor(whole - head), beside)
    return np.minimum(best, layers)


def fullest_blocks(c: Columns) -> tuple[Floats, Floats]:
    """Blocks of the fullest rank without the output layer, and of the one with it."""
    stages = c.pp * c.chunks
    last = _last(c.layers, c.head_blocks, stages)
    each, over = np.divmod(c.layers - last, np.maximum(stages - 1, 1.0))
    others = c.chunks * each + np.ceil(over / c.pp)
    ends = (c.chunks - 1) * (each + (over > 0)) + last
    even = np.mod(c.layers, c.pp) == 0
    usual = np.minimum(np.where(even, c.layers / c.pp, np.ceil((c.layers + 2) / c.pp)), c.layers)
    balanced = c.balanced > 0
    return np.where(balanced, np.where(c.pp > 1, others, last), usual), np.where(balanced, ends, usual)


def end_places(c: Columns) -> tuple[Place, Place]:
    """Return the rank that waits longest for its backward passes, as full as any, and the one with the logits."""
    balanced = c.balanced > 0
    others, ends = fullest_blocks(c)
    even = np.ceil(c.layers / c.pp)
    weights = np.where(c.pp > 1, 1.0 - 0.5 * (1 - c.tied), 1.0)
    m = np.maximum(c.micro_steps, 1.0)
    chunked = np.where((c.chunks > 1) & (c.zero_bubble == 0), (c.pp - 1) / c.chunks, 0.0)
    first = np.where(c.gpipe > 0, m, np.minimum(c.pp, m) + chunked)
    last = np.where(c.gpipe > 0, m, np.where(c.zero_bubble > 0, np.minimum(c.pp, m), 1.0))
    later = np.where(balanced & (c.chunks > 1) & (c.zero_bubble == 0), ((c.chunks - 1) * c.pp + 1) / c.chunks, last)
    return (
        Place(blocks=np.where(balanced, others, even), kept=first, logits=0 * m, ends=weights),
        Place(blocks=np.where(balanced, ends, even), kept=later, logits=last, ends=weights),
    )
