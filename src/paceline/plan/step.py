"""How long does a step take? Blocks, pipeline, messages that do not hide, optimizer.

A pipeline of p stages with m micro-batches in v chunks takes m periods of its slowest stage and (p - 1) / v more to
fill and drain; a few that matter are played instead (`pipeline`). Messages that may hide behind compute show by a
fitted share, and wholly where there are more of them than compute.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from paceline.plan.columns import Columns, Floats
from paceline.plan.constants import Constants
from paceline.plan.links import exchange_s, gather_s, hand_over_s
from paceline.plan.stages import fullest_blocks
from paceline.plan.weights import weights_of
from paceline.plan.work import Block, block, head_s, sparse_share, tokens

_OPTIMIZER_BYTES = 30.0  # that Adam reads and writes per weight: gradient, two moments, the weight, its copy
_ROUNDING = 1e-9  # share of a sum


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
class Pace:
    """The rank that sets the pace of a pipeline, and how long micro-batches take in all.

    Attributes:
        blocks: It has so many.
        has_head: And the output layer, 1.0 or 0.0.
        pipeline_s: From the first forward pass to the last backward one.
    """

    blocks: Floats
    has_head: Floats
    pipeline_s: Floats


def step(c: Columns, k: Constants, played: Pace | None = None) -> Step:
    """Predict the step of every case; of pipelines that were played, the pace is known, else it is a closed form."""
    each = block(c, k)
    tensor, expert = sum(tensor_s(c, k)), sum(expert_s(c, k))
    compute = each.forward.total + each.backward.total
    pace = _pace(c, k, each, compute + tensor + expert) if played is None else played
    m, blocks = c.micro_steps, c.micro_steps * pace.blocks
    parts = {
        name: blocks * (getattr(each.forward, name) + getattr(each.backward, name))
        for name in ("matrix", "attention", "bandwidth", "launch")
    } | {
        "head": m * pace.has_head * head_s(c, k),
        "tensor": blocks * tensor,
        "expert": blocks * expert,
        "shard": m * sum(shard_s(c, k, each, pace.blocks)),
        "stages": m * _hand_s(c, k),
    }
    reduce, optimizer = _reduce_s(c, k, pace.blocks * compute), _optimizer_s(c)
    total = pace.pipeline_s + reduce + optimizer
    return Step(
        **parts,
        reduce=reduce,
        bubble=_rest(pace.pipeline_s, sum(parts.values(), start=0.0 * m)),
        optimizer=optimizer,
        rest=k.step_s + k.imbalance * np.log2(np.maximum(c.nodes, 1.0)) * total,
    )


def _rest(whole: Floats, parts: Floats) -> Floats:
    """Return what parts leave of a whole, where that is more than their sum's rounding."""
    return np.where(np.abs(whole - parts) > _ROUNDING * whole, whole - parts, 0.0)


def _pace(c: Columns, k: Constants, each: Block, each_s: Floats) -> Pace:
    """Return the slowest stage: m of its periods, and (p - 1) / v of the others' to fill and drain.

    Where stages are not balanced, blocks that do not divide leave room for the embedding and the output layer, which
    then count as blocks. A zero-bubble schedule computes gradients of weights, that nobody waits for, in the bubble.
    """
    others, ends = fullest_blocks(c)
    head, balanced = head_s(c, k), c.balanced > 0
    at_end = (c.pp == 1) | (ends * each_s + head >= others * each_s)
    blocks = np.where(balanced & at_end, ends, others)
    has_head = np.where(np.where(balanced, at_end, np.mod(c.layers, c.pp) == 0), 1.0, 0.0)
    hand = _hand_s(c, k)
    period = blocks * each_s + has_head * head + sum(shard_s(c, k, each, blocks)) + hand
    late = 2 * c.zero_bubble * others * each.forward.matrix
    fill = (c.pp - 1) / c.chunks * (others * each_s + sum(shard_s(c, k, each, others)) + hand - late)
    return Pace(blocks=blocks, has_head=has_head, pipeline_s=c.micro_steps * period + fill)


def _hand_s(c: Columns, k: Constants) -> Floats:
    """What a rank waits for messages between stages in one micro-batch: one on and one back for each chunk."""
    return 2 * c.chunks * sent_s(c, k) * k.stage_exposed


def sent_s(c: Columns, k: Constants) -> Floats:
    """One message between neighbours in a pipeline."""
    return np.where(c.pp > 1, hand_over_s(c, k, _stage_bytes(c), _stride(c)), 0.0)


def _stride(c: Columns) -> Floats:
    """Ranks between neighbours in a pipeline."""
    return c.gpus / c.pp


def _stage_bytes(c: Columns) -> Floats:
    return tokens(c) * c.hidden * c.element_bytes / c.tp


def tensor_s(c: Columns, k: Constants) -> tuple[Floats, Floats]:
    """Messages of tensor and context parallelism in one block, forward and backward.

    Two all-reduces in each pass, or what equals them; keys and values go round once forward and twice backward.
    """
    one = 2 * gather_s(c, k, tokens(c) * c.hidden * c.element_bytes, c.tp, 0 * c.tp + 1)
    exposed = np.where(c.overlap_tensor > 0, k.tensor_exposed, 1.0)
    pairs = 2 * c.kv_heads * c.head_dim / c.tp * c.element_bytes * c.micro_batch * c.seq
    ring = gather_s(c, k, pairs, c.cp, c.tp) * k.tensor_exposed
    return 2 * exposed * one + ring, (2 + 2 * c.recompute_full) * exposed * one + 2 * ring


def expert_s(c: Columns, k: Constants) -> tuple[Floats, Floats]:
    """Tokens to their experts and back, forward and backward."""
    sent = tokens(c) / c.tp * c.top_k * c.hidden * c.element_bytes
    once = sparse_share(c) * 2 * exchange_s(c, k, sent, c.ep, 0 * c.ep + 1) * k.expert_exposed
    return once, once


def shard_s(c: Columns, k: Constants, each: Block, blocks: Floats) -> tuple[Floats, Floats]:
    """Gathering sharded weights in each pass and scattering their gradients in the backward one, as far as it shows."""
    size = c.shard * c.cp * c.shard_parameters
    weights = (c.block_params + c.expert_params / c.ep) / c.layers / c.tp * blocks
    trained = np.where(c.adapters > 0, 0.0, 1.0)
    half = np.minimum(np.minimum(c.element_bytes, 2.0), c.frozen_bits / 8)
    slower = np.where(c.piecewise > 0, k.piecewise, 1.0)
    once = gather_s(c, k, weights * half, np.maximum(size, 1.0), c.tp) / slower
    forward = _shows(once, blocks * each.forward.total, k)
    return forward, _shows(once + trained * once, blocks * each.backward.total, k)


def _reduce_s(c: Columns, k: Constants, compute: Floats) -> Floats:
    """Gradients of a step over replicas, and weights back where the optimizer is sharded.

    Behind them go the last backward pass and, for the weights, the next forward one. Replicas of sharded weights
    reduce what each holds of them.
    """
    w = weights_of(c)
    sharded = c.shard_parameters > 0
    half = np.minimum(c.element_bytes, 2.0)
    back = np.where((c.shard_optimizer > 0) & ~sharded, half, c.gradient_bytes)
    rest = np.where(c.adapters > 0, c.trainable, w.rest) / w.sharers
    experts = np.where(c.adapters > 0, 0.0, w.experts) / w.expert_sharers
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
    return np.where(c.adapters > 0, c.trainable, own) * _OPTIMIZER_BYTES / c.memory_bandwidth
