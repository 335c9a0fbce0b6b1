"""The share of a model on one rank: the blocks of its pipeline stages, and its parameters.

The slowest stage limits a pipeline. L blocks and an output layer, which costs as much as h blocks, are divided into S
stages so that the slowest stage is as fast as possible. This stage has either n blocks, or the output layer and j
blocks. `paceline.train` uses the same rule. The embedding only looks up rows, so its time counts as 0; its weights
count as memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.plan.cost.columns import Columns, Floats


@dataclass(frozen=True, kw_only=True)
class PipelineRank:
    """The part of a model on one pipeline rank; each array has shape (cases,).

    Attributes:
        blocks: Number of blocks of all stages of the rank.
        kept: Number of micro-batches whose activations the rank keeps at its peak.
        logits: Number of micro-batches whose logits the rank keeps.
        ends: Share of the weights of embedding and output layer that is on the rank.
    """

    blocks: Floats
    kept: Floats
    logits: Floats
    ends: Floats


def blocks_per_stage(layers: int, head: float, stages: int) -> tuple[int, ...]:
    """Return the number of blocks of each stage; the last stage also has the output layer.

    Args:
        layers: Number of blocks, at least as many as stages.
        head: Cost of the output layer, in blocks.
        stages: Number of stages, at least one.
    """
    last = int(_last(np.array(float(layers)), np.array(head), np.array(float(stages))))
    if stages == 1:
        return (layers,)
    each, over = divmod(layers - last, stages - 1)
    return (*[each] * (stages - 1 - over), *[each + 1] * over, last)


def _last(layers: Floats, head: Floats, stages: Floats) -> Floats:
    """Return the number of blocks of the last stage, which also has the output layer."""
    whole = np.maximum(
        np.ceil((layers + np.ceil(head)) / stages), np.ceil(head)
    )  # if the costliest stage has whole blocks only
    beside = np.maximum(0.0, np.ceil((layers - (stages - 1) * np.floor(head)) / stages))  # or the output layer
    best: Floats = np.where(whole <= head + beside, np.floor(whole - head), beside)
    return np.minimum(best, layers)


def fullest_blocks(c: Columns) -> tuple[Floats, Floats]:
    """Return the largest number of blocks on ranks without the output layer, and the number on the rank with it."""
    stages = c.pp * c.chunks
    last = _last(c.layers, c.head_blocks, stages)
    each, over = np.divmod(c.layers - last, np.maximum(stages - 1, 1.0))
    others = c.chunks * each + np.ceil(over / c.pp)
    ends = (c.chunks - 1) * (each + (over > 0)) + last
    even = np.mod(c.layers, c.pp) == 0
    usual = np.minimum(np.where(even, c.layers / c.pp, np.ceil((c.layers + 2) / c.pp)), c.layers)
    balanced = c.balanced > 0
    return np.where(balanced, np.where(c.pp > 1, others, last), usual), np.where(balanced, ends, usual)


def end_places(c: Columns) -> tuple[PipelineRank, PipelineRank]:
    """Return the first pipeline rank, which keeps most activations, and the last rank, which has the logits."""
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
        PipelineRank(blocks=np.where(balanced, others, even), kept=first, logits=0 * m, ends=weights),
        PipelineRank(blocks=np.where(balanced, ends, even), kept=later, logits=last, ends=weights),
    )


@dataclass(frozen=True, kw_only=True)
class RankWeights:
    """Numbers of parameters on one device before sharding, and numbers of ranks that share the parameters.

    Experts and other parameters (the rest) are counted separately. Experts are spread over `ep` ranks, so each has
    fewer replicas than other parameters. Parameters are sharded over at most as many ranks as they have replicas.
    """

    rest: Floats
    experts: Floats
    sharers: Floats  # ranks that share the rest, if parameters are sharded
    expert_sharers: Floats
    replicas: Floats
    expert_replicas: Floats

    @property
    def device(self) -> Floats:
        """Return the number of parameters on the device, experts included."""
        return self.rest + self.experts

    def split(self, rest: Floats, experts: Floats) -> Floats:
        """Return the number of parameters on each rank after sharding.

        Args:
            rest: Number of ranks over which the parameters without experts are sharded.
            experts: Number of ranks over which the experts are sharded.
        """
        return self.rest / rest + self.experts / experts


def weights_of(c: Columns, place: PipelineRank | None = None) -> RankWeights:
    """Return the parameter counts of a pipeline rank; without `place`, those of the rank with most blocks."""
    share = np.where(c.balanced > 0, fullest_blocks(c)[0] / c.layers, 1 / c.pp)
    ends = np.where(c.pp > 1, 1.0 - 0.5 * (1 - c.tied), 1.0)
    if place is not None:
        share, ends = np.where(c.balanced > 0, place.blocks / c.layers, 1 / c.pp), place.ends
    replicas = c.dp * c.shard * c.cp
    sharers = np.where(c.shard_parameters > 0, c.shard * c.cp, 1.0)
    return RankWeights(
        rest=c.block_params * share / c.tp + ends * c.embedding_params / c.tp,
        experts=c.expert_params * share / c.ep,
        sharers=sharers,
        expert_sharers=np.maximum(1.0, sharers * c.tp / c.ep),
        replicas=replicas,
        expert_replicas=np.maximum(1.0, replicas * c.tp / c.ep),
    )
