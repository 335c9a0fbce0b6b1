"""How long does a step take? Blocks, pipeline, messages that do not hide, optimizer.

A pipeline of p stages with m micro-batches in v chunks takes m periods of its slowest stage and (p - 1) / v more to
fill and drain. Messages that may hide behind compute show by a fitted share, and wholly where there are more of them
than compute.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from paceline.plan.columns import Columns, Floats
from paceline.plan.constants import Constants
from paceline.plan.links import exchange_s, gather_s, hand_over_s
from paceline.plan.work import Block, block, head_s, sparse_share, tokens

_OPTIMIZER_BYTES = 30.0  # that Adam reads and writes per weight: gradient, two moments, the weight, its copy


@dataclass(frozen=True, kw_only=True)
class Step:
    """Seconds of a step by part, each of shape (cases,)."""

    matrix: Floats
    attention: Floats
    bandwidth: Floats
    launch: Floats
    head: Floats
    tensor: Floats  # exposed messages, by axis
    expert: Floats
    shard: Floats
    stages: Floats
    reduce: Floats
    bubble: Floats
    optimizer: Floats
    rest: Floats  # what every step has, and waiting for the slowest

    @property
    def total(self) -> Floats:
        """The step."""
        parts: list[Floats] = [getattr(self, field.name) for field in fields(self)]
        return sum(parts[1:], start=parts[0])


@dataclass(frozen=True, kw_only=True)
class _Stage:
    """The slowest stage on one micro-batch."""

    blocks: Floats
    has_head: Floats


def step(c: Columns, k: Constants) -> Step:
    """Predict the step of every case."""
    each = block(c, k)
    stage = _slowest(c)
    tensor, expert = _tensor_s(c, k), _expert_s(c, k)
    head = head_s(c, k)
    compute = each.forward.total + each.backward.total
    shard = _shard_s(c, k, each, stage.blocks)
    along = stage.blocks * (compute + tensor + expert)
    period = along + stage.has_head * head + shard
    hand = np.where(c.pp > 1, 2 * c.chunks * hand_over_s(c, k, _stage_bytes(c), _stride(c)), 0.0) * k.stage_exposed
    fill = (c.pp - 1) / c.chunks * (along + shard + hand)
    m = c.micro_steps
    reduce = _reduce_s(c, k, stage.blocks * compute)
    parts = {
        name: m * stage.blocks * (getattr(each.forward, name) + getattr(each.backward, name))
        for name in ("matrix", "attention", "bandwidth", "launch")
    }
    optimizer = _optimizer_s(c)
    total = m * (period + hand) + fill + reduce + optimizer
    return Step(
        **parts,
        head=m * stage.has_head * head,
        tensor=m * stage.blocks * tensor,
        expert=m * stage.blocks * expert,
        shard=m * shard,
        stages=m * hand,
        reduce=reduce,
        bubble=fill,
        optimizer=optimizer,
        rest=k.step_s + k.imbalance * np.log2(np.maximum(c.nodes, 1.0)) * total,
    )


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Weights of the fullest stage on one device before replicas share them, and how many ranks share each kind.

    Experts are spread over `ep` ranks and so have fewer replicas; nothing is split finer than its replicas.
    """

    rest: Floats
    experts: Floats
    sharers: Floats  # of the rest, where parameters are sharded
    expert_sharers: Floats
    replicas: Floats
    expert_replicas: Floats

    @property
    def device(self) -> Floats:
        """Both kinds."""
        return self.rest + self.experts

    def split(self, rest: Floats, experts: Floats) -> Floats:
        """Return what one rank has where each kind is shared by so many."""
        return self.rest / rest + self.experts / experts


def weights_of(c: Columns) -> Weights:
    """Count the weights of the fullest stage."""
    ends = np.where(c.pp > 1, 1.0 - 0.5 * (1 - c.tied), 1.0)
    replicas = c.dp * c.shard * c.cp
    sharers = np.where(c.shard_parameters > 0, c.shard * c.cp, 1.0)
    return Weights(
        rest=c.block_params / c.pp / c.tp + ends * c.embedding_params / c.tp,
        experts=c.expert_params / c.pp / c.ep,
        sharers=sharers,
        expert_sharers=np.maximum(1.0, sharers * c.tp / c.ep),
        replicas=replicas,
        expert_replicas=np.maximum(1.0, replicas * c.tp / c.ep),
    )


def _slowest(c: Columns) -> _Stage:
    """Blocks that do not divide leave room for the embedding and the output layer, which then count as blocks."""
    even = np.mod(c.layers, c.pp) == 0
    blocks = np.where(even, c.layers / c.pp, np.ceil((c.layers + 2) / c.pp))
    return _Stage(blocks=np.minimum(blocks, c.layers), has_head=np.where(even, 1.0, 0.0))


def _stride(c: Columns) -> Floats:
    """Ranks between neighbours in a pipeline."""
    return c.gpus / c.pp


def _stage_bytes(c: Columns) -> Floats:
    return tokens(c) * c.hidden * c.element_bytes / c.tp


def _tensor_s(c: Columns, k: Constants) -> Floats:
    """Messages of tensor and context parallelism in one block: two all-reduces in each pass, or what equals them."""
    one = 2 * gather_s(c, k, tokens(c) * c.hidden * c.element_bytes, c.tp, 0 * c.tp + 1)
    exposed = np.where(c.overlap_tensor > 0, k.tensor_exposed, 1.0)
    turns = 4 + 2 * c.recompute_full
    pairs = 2 * c.kv_heads * c.head_dim / c.tp * c.element_bytes * c.micro_batch * c.seq
    ring = 3 * gather_s(c, k, pairs, c.cp, c.tp) * k.tensor_exposed
    return exposed * turns * one + ring


def _expert_s(c: Columns, k: Constants) -> Floats:
    """Tokens to their experts and back, forward and backward."""
    sent = tokens(c) / c.tp * c.top_k * c.hidden * c.element_bytes
    return sparse_share(c) * 4 * exchange_s(c, k, sent, c.ep, 0 * c.ep + 1) * k.expert_exposed


def _shard_s(c: Columns, k: Constants, each: Block, blocks: Floats) -> Floats:
    """Gathering sharded weights twice and scattering their gradients once per micro-batch, as far as it shows."""
    size = c.shard * c.cp * c.shard_parameters
    weights = (c.block_params + c.expert_params / c.ep) / c.layers / c.tp * blocks
    trained = np.where(c.trainable > 0, 0.0, 1.0)
    half = np.minimum(c.element_bytes, 2.0)
    slower = np.where(c.piecewise > 0, k.piecewise, 1.0)
    once = gather_s(c, k, weights * half, np.maximum(size, 1.0), c.tp) / slower
    forward = _shows(once, blocks * each.forward.total, k)
    return forward + _shows(once + trained * once, blocks * each.backward.total, k)


def _reduce_s(c: Columns, k: Constants, compute: Floats) -> Floats:
    """Gradients of a step over replicas, and weights back where the optimizer is sharded.

    Behind them go the last backward pass and, for the weights, the next forward one. Replicas of sharded weights
    reduce what each holds of them.
    """
    w = weights_of(c)
    sharded = c.shard_parameters > 0
    half = np.minimum(c.element_bytes, 2.0)
    back = np.where((c.shard_optimizer > 0) & ~sharded, half, c.gradient_bytes)
    rest, experts = np.where(c.trainable > 0, c.trainable, w.rest) / w.sharers, w.experts / w.expert_sharers
    alike = np.where(sharded, c.dp, w.replicas)
    stride = np.where(sharded, c.tp * c.cp * c.shard, c.tp)
    sent = gather_s(c, k, rest * (c.gradient_bytes + back), alike, stride)
    alike = np.where(sharded, c.dp, w.expert_replicas)
    sent = sent + gather_s(c, k, experts * (c.gradient_bytes + back), alike, np.maximum(stride, c.ep))
    return np.where(c.overlap_reduce > 0, _shows(sent, compute, k), sent)


def _shows(sent: Floats, behind: Floats, k: Constants) -> Floats:
    return k.reduce_exposed * np.minimum(sent, behind) + np.maximum(0.0, sent - behind)


def _optimizer_s(c: Columns) -> Floats:
    w = weights_of(c)
    own = np.where(c.shard_optimizer > 0, w.split(w.replicas, w.expert_replicas), w.device)
    own = np.where(c.shard_parameters > 0, w.split(w.sharers, w.expert_sharers), own)
    return np.where(c.trainable > 0, c.trainable, own) * _OPTIMIZER_BYTES / c.memory_bandwidth
