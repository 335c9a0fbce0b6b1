"""The time of a training step: compute per block, messages, pipeline, optimizer.

Compute. A matrix product (m, k)·(k, n) takes 2mnk FLOPs at the rate that large products reach, plus a part of the time
to read and write its operands. Flash attention takes 4·t·s·h·d FLOPs forward (half if causal) and 2.5 times that
backward; unfused attention also writes its scores to memory and reads them. All other operators are bound by memory
bandwidth. No operator is faster than its kernels can be launched. If the kernels of a program are not fused, they and
the bytes of the other operators are counted in the program itself (`models.counted_step`).

Messages follow Hockney's latency and bandwidth on the slowest link of the group. Ranks are numbered along `tp` first,
then along `cp`, replicas and `pp`. A group of `size` ranks, `stride` apart, has `domain / stride` members in one domain
of fast links; traffic between domains uses only the adapters of these members, because every other rank of the domain
sends for its own group at the same time. A message that overlaps with compute adds a fitted share of its time to the
step, and all of the time by which it is longer than the compute.

With m micro-batches, a pipeline of p ranks with v stages (chunks) each takes m + (p - 1) / v times as long as one
micro-batch on its slowest rank. The best plans are simulated instead (`pipeline`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from paceline.plan.cost.columns import Columns, Floats, sparse_share, tokens
from paceline.plan.cost.constants import Constants
from paceline.plan.cost.partition import fullest_blocks, weights_of


def rate(c: Columns, k: Constants, size: Floats, stride: Floats) -> Floats:
    """Return the bytes/s at which a tensor is sent around a group of ranks in a ring.

    Ranks of a group are `stride` apart.
    """
    inside = np.clip(c.domain / stride, 1.0, size)
    fast = k.link_share * c.link
    return np.where(size * stride <= c.domain, fast, np.minimum(fast, k.network_share * c.network * inside))


def gather_s(c: Columns, k: Constants, whole_bytes: Floats, size: Floats, stride: Floats) -> Floats:
    """Return the seconds of an all-gather or a reduce-scatter of a tensor of `whole_bytes`.

    An all-reduce takes twice as long. The group has `size` ranks, `stride` apart.
    """
    inside = np.clip(c.domain / stride, 1.0, size)
    between = np.log2(np.maximum(size / inside, 1.0))
    latency = k.message_s * (np.minimum(inside, 8.0) - 1.0) + k.hop_s * between
    return np.where(size > 1, whole_bytes * (size - 1) / size / rate(c, k, size, stride) + latency, 0.0)


def exchange_s(c: Columns, k: Constants, sent_bytes: Floats, size: Floats, stride: Floats) -> Floats:
    """Return the seconds of an all-to-all in which each rank sends `sent_bytes`.

    Each rank uses its own network adapter. The group has `size` ranks, `stride` apart.
    """
    inside = np.clip(c.domain / stride, 1.0, size)
    fast = sent_bytes * (inside - 1) / size / (k.link_share * c.link)
    slow = sent_bytes * (size - inside) / size / (k.network_share * c.network)
    latency = k.message_s + k.hop_s * (size > inside)
    return np.where(size > 1, np.maximum(fast, slow) + latency, 0.0)


def hand_over_s(c: Columns, k: Constants, sent_bytes: Floats, stride: Floats) -> Floats:
    """Return the seconds of one message to the rank that is `stride` ranks further."""
    outside = stride * 2 > c.domain
    speed = np.where(outside, k.network_share * c.network, k.link_share * c.link)
    return sent_bytes / speed + np.where(outside, k.hop_s, k.message_s)


_HIDDEN_PASSES = 14.0  # multiples of the hidden width moved forward: two norms, two residual sums, rotary, copies
_BACKWARD_PASSES = 1.7  # activations moved in the backward pass, relative to the forward pass
# Kernel launches of a block in the forward pass, and extra launches by kind.
_LAUNCHES = {
    "fused": 26.0,
    "eager": 44.0,
    "expert": 40.0,
    "sharded": 60.0,
    "adapter": 24.0,
    "quantised": 35.0,
    "relative": 60.0,
}
_BACKWARD_LAUNCHES = 1.8


@dataclass(frozen=True, kw_only=True)
class TimeParts:
    """Seconds of a pass by part, each of shape (cases,)."""

    matrix: Floats
    attention: Floats
    bandwidth: Floats
    launch: Floats  # time added because kernels are launched too slowly

    @property
    def total(self) -> Floats:
        """Return the sum of the parts."""
        return self.matrix + self.attention + self.bandwidth + self.launch


@dataclass(frozen=True, kw_only=True)
class BlockTime:
    """Seconds of one block for one micro-batch on one device; the backward pass includes recomputation."""

    forward: TimeParts
    backward: TimeParts


def block_time(c: Columns, k: Constants) -> BlockTime:
    """Return the seconds of the forward and the backward pass of the average block of a model."""
    matrix, scores, moved = _matrix_s(c, k), _attention_s(c, k), _moved_s(c, k)
    again = c.recompute_full
    beside = _beside_s(c, k)
    kernels = _kernels(c)
    forward = _floored(c, k, matrix + beside, scores[0], moved, kernels[0])
    weights = np.where(c.adapters > 0, 1.0, 2.0)  # frozen weights need no weight gradient
    backward = _floored(
        c,
        k,
        (weights + again + 0.5 * c.recompute_operators) * matrix + (2.0 + again) * beside,
        scores[1] + np.minimum(1.0, again + c.recompute_attention) * scores[0],
        _moved_back_s(c, k, moved) + (again + 0.8 * c.recompute_operators + 0.6 * c.recompute_cheap) * moved,
        kernels[1] + again * kernels[0],
    )
    return BlockTime(forward=forward, backward=backward)


def head_s(c: Columns, k: Constants) -> Floats:
    """Return the seconds of the output layer and the loss, forward and backward, on the rank that has this layer."""
    t = tokens(c) * c.head_share
    share = np.where(c.wide > 0, k.matrix_wide, 1.0) * _by_family(c, k)
    products = 3 * _product_s(
        c, k, (t, c.vocab / c.tp, c.hidden), c.ceiling_wide * share, np.maximum(2.0, c.element_bytes)
    )
    each = np.where(c.counted > 0, k.passes_counted * c.logit_moved, k.loss_passes * c.element_bytes)
    converted = k.passes_counted * c.weight_moved * c.embedding_params / c.tp
    return products + (each * t * c.vocab / c.tp + converted) / c.memory_bandwidth


def _matrix_s(c: Columns, k: Constants) -> Floats:
    t, low = tokens(c), c.low_bits > 0
    share = _by_family(c, k) * np.where(low, k.matrix_fp8, 1.0) * np.where(c.four_bits > 0, k.matrix_fp4, 1.0)
    speed = c.ceiling * share * np.where(c.wide > 0, k.matrix_wide, 1.0)
    width = np.where(low, 1.0, c.element_bytes)
    outer = c.heads * c.head_dim
    usual = 2 * c.hidden * c.head_dim * (c.heads + c.kv_heads)
    into = _product_s(c, k, (t, (outer + 2 * c.kv_heads * c.head_dim) / c.tp, c.hidden), speed, width)
    back = _product_s(c, k, (t, c.hidden, outer / c.tp), speed, width)
    attention = (into + back) * c.attention_params / usual
    dense = _feed_forward_s(c, k, t, c.ffn / c.tp, speed, width)
    sparse = sparse_share(c)
    return attention + (1 - sparse) * dense + sparse * _experts_s(c, k, speed, width)


def _beside_s(c: Columns, k: Constants) -> Floats:
    """Return the seconds of the low-rank products of adapters, whose weights have at least 16 bits."""
    share = np.where(c.wide > 0, k.matrix_wide, 1.0) * _by_family(c, k)
    flops = 2 * tokens(c) * c.trainable / c.layers / c.tp
    return np.where(c.deep_adapters == 1, flops / (c.ceiling_wide * share), 0.0)


def _feed_forward_s(c: Columns, k: Constants, t: Floats, wide: Floats, speed: Floats, width: Floats) -> Floats:
    up = (c.matrices - 1) * wide
    return _product_s(c, k, (t, up, c.hidden), speed, width) + _product_s(c, k, (t, c.hidden, wide), speed, width)


def _experts_s(c: Columns, k: Constants, speed: Floats, width: Floats) -> Floats:
    """Return the seconds of the experts of one rank: routed experts for their share of the tokens, and shared ones."""
    t = tokens(c) / c.tp
    experts = np.maximum(c.experts, 1.0)
    local = np.maximum(experts / c.ep, 1.0)
    each = np.maximum(t * c.top_k * c.ep / experts, 1.0)
    slower = speed * np.where(c.low_bits > 0, k.grouped_low, k.grouped)
    routed = local * _feed_forward_s(c, k, each, np.maximum(c.expert_ffn, 1.0), slower, width)
    shared = _feed_forward_s(c, k, t, c.shared_ffn, speed, width)
    return routed + np.where(c.shared_ffn > 0, shared, 0.0)


def _product_s(c: Columns, k: Constants, shape: tuple[Floats, Floats, Floats], speed: Floats, width: Floats) -> Floats:
    m, n, inner = shape
    moved = width * (m * n + n * inner + m * inner)
    return 2 * m * n * inner / speed + k.small_products * moved / c.memory_bandwidth


def _by_family(c: Columns, k: Constants) -> Floats:
    shares = [k.matrix_volta, k.matrix_ampere, k.matrix_ampere, k.matrix_hopper, k.matrix_blackwell, k.matrix_ampere]
    return np.array(shares)[c.family]


def _attention_s(c: Columns, k: Constants) -> tuple[Floats, Floats]:
    """Return the seconds of attention without its projections, forward and backward."""
    t = tokens(c)
    full = 4 * t * c.seq * c.span * c.heads * c.head_dim / c.tp
    flash = [k.flash_ampere] * 3 + [k.flash_hopper, k.tuned_blackwell, k.flash_ampere]
    tuned = [k.flash_ampere] * 3 + [k.tuned_hopper, k.tuned_blackwell, k.flash_ampere]
    early = [k.early_ampere] * 3 + [k.early_hopper, k.early_hopper, k.early_ampere]
    share = np.where(c.tuned_attention > 0, np.array(tuned)[c.family], np.array(flash)[c.family])
    share = np.where(c.early_attention > 0, np.array(early)[c.family], share)
    fused = np.where(c.causal > 0, full / 2, full) / (share * c.ceiling_wide)
    scores = t * c.seq * c.span * c.heads / c.tp * c.element_bytes
    passes = np.where(c.fused > 0, k.plain_passes, k.plain_passes_eager)
    moved = passes / 3 * scores / c.memory_bandwidth
    wide = np.where(c.wide > 0, k.matrix_wide, 1.0)
    plain = full / (c.ceiling_wide * wide * _by_family(c, k)) + moved
    is_plain = c.plain_attention > 0
    return np.where(is_plain, plain, fused), np.where(is_plain, 2 * plain, 2.5 * fused)


def _moved_s(c: Columns, k: Constants) -> Floats:
    """Return the seconds in which the element-wise operators of a block move activations in the forward pass."""
    sparse = sparse_share(c)
    routed = k.expert_passes * sparse * c.top_k * c.hidden / c.tp
    passes = np.where(c.fused > 0, k.passes_fused, k.passes_eager)
    moved = tokens(c) * (passes * _elements(c) + routed) * c.element_bytes
    moved = np.where(c.counted > 0, k.passes_counted * tokens(c) * c.forward_moved * _share_of_rank(c), moved)
    frozen = np.where(c.frozen_bits < 16, 3.0 * c.block_params / c.layers / c.tp, 0.0)
    return (moved + frozen) / c.memory_bandwidth


def _moved_back_s(c: Columns, k: Constants, moved: Floats) -> Floats:
    """Return the seconds of the same operators in the backward pass, and of the conversion of weights and gradients.

    Args:
        c: The cases.
        k: The fitted constants.
        moved: The seconds of the forward pass.
    """
    each = tokens(c) * c.backward_moved * _share_of_rank(c) + c.weight_moved * c.block_params / c.layers / c.tp
    return np.where(c.counted > 0, k.passes_counted * each / c.memory_bandwidth, _BACKWARD_PASSES * moved)


def _share_of_rank(c: Columns) -> Floats:
    """Return the share of the elements of a block that one rank of a tensor-parallel group moves."""
    return _elements(c) / _elements(replace(c, tp=0.0 * c.tp + 1))


def _elements(c: Columns) -> Floats:
    """Return the elements per token that the operators of a block move in the forward pass."""
    along = np.where(c.sequence_parallel > 0, c.tp, 1.0)
    sparse = sparse_share(c)
    wide = (1 - sparse) * c.ffn + sparse * (c.top_k * c.expert_ffn + c.shared_ffn)
    per_token = _HIDDEN_PASSES * c.hidden / along + (2.0 + c.gated) * wide / c.tp
    return per_token + c.low_bits * (3 * c.hidden + wide) / c.tp


def _kernels(c: Columns) -> tuple[Floats, Floats]:
    """Return the kernels that the host launches for one block, in the forward and the backward pass."""
    usual = np.where(c.fused > 0, _LAUNCHES["fused"], _LAUNCHES["eager"]) + sparse_share(c) * _LAUNCHES["expert"]
    adapters = np.maximum(1.0, c.wide_adapters * (4 + c.matrices) / 2)  # relative to adapters on queries and values
    usual = usual * (1 + 0.5 * c.low_bits) + (c.deep_adapters == 1) * _LAUNCHES["adapter"] * adapters
    usual = usual + (c.span > 1) * _LAUNCHES["relative"]
    beside = c.shard_parameters * _LAUNCHES["sharded"] + (c.frozen_bits < 16) * _LAUNCHES["quantised"]
    forward = np.where(c.counted > 0, c.forward_kernels, usual) + beside
    backward = np.where(c.counted > 0, c.backward_kernels, _BACKWARD_LAUNCHES * usual) + _BACKWARD_LAUNCHES * beside
    return forward, backward


def _floored(c: Columns, k: Constants, matrix: Floats, scores: Floats, moved: Floats, kernels: Floats) -> TimeParts:
    """Return the seconds of one pass by part.

    The part `launch` is the time added because the host launches kernels more slowly than the GPU runs them: the smooth
    maximum of GPU and host time, minus the GPU time.
    """
    host = kernels * np.where(c.fused > 0, k.kernel_fused_s, k.kernel_eager_s)
    busy = matrix + scores + moved
    return TimeParts(matrix=matrix, attention=scores, bandwidth=moved, launch=(busy**4 + host**4) ** 0.25 - busy)


_OPTIMIZER_BYTES = 30.0  # bytes that Adam reads and writes per weight: gradient, two moments, the weight, its copy
_ROUNDING = 1e-9  # share of a sum


@dataclass(frozen=True, kw_only=True)
class StepTime:
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
    rest: Floats  # fixed costs of a step, and waiting for the slowest rank

    @property
    def total(self) -> Floats:
        """Return the step time."""
        parts: list[Floats] = [getattr(self, field.name) for field in fields(self)]
        return sum(parts[1:], start=parts[0])


@dataclass(frozen=True, kw_only=True)
class PipelinePace:
    """The slowest rank of a pipeline, and the time of all micro-batches.

    Attributes:
        blocks: Number of blocks of the slowest rank.
        has_head: Whether the slowest rank has the output layer, 1.0 or 0.0.
        pipeline_s: Seconds from the first forward pass to the last backward pass.
    """

    blocks: Floats
    has_head: Floats
    pipeline_s: Floats


def step(c: Columns, k: Constants, played: PipelinePace | None = None) -> StepTime:
    """Return the predicted step time of each case by part.

    Args:
        c: The cases.
        k: The fitted constants.
        played: The result of simulated pipelines; None to predict pipelines by a closed form.
    """
    each = block_time(c, k)
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
    total, bubble = pace.pipeline_s + reduce + optimizer, pace.pipeline_s - sum(parts.values(), start=0.0 * m)
    return StepTime(
        **parts,
        reduce=reduce,
        bubble=np.where(np.abs(bubble) > _ROUNDING * pace.pipeline_s, bubble, 0.0),
        optimizer=optimizer,
        rest=k.step_s + k.imbalance * np.log2(np.maximum(c.nodes, 1.0)) * total,
    )


def _pace(c: Columns, k: Constants, each: BlockTime, each_s: Floats) -> PipelinePace:
    """Return the slowest rank and the time of the pipeline, by a closed form.

    The time is that of m micro-batches on the slowest rank, plus that of (p - 1) / v micro-batches on the other ranks.
    If stages are not balanced and the number of blocks is not divisible, embedding and output layer count as blocks. A
    zero-bubble schedule computes weight gradients while the rank would otherwise wait.
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
    return PipelinePace(blocks=blocks, has_head=has_head, pipeline_s=c.micro_steps * period + fill)


def _hand_s(c: Columns, k: Constants) -> Floats:
    """Return the exposed seconds of messages between stages for one micro-batch: two messages for each chunk."""
    return 2 * c.chunks * sent_s(c, k) * k.stage_exposed


def sent_s(c: Columns, k: Constants) -> Floats:
    """Return the seconds of one message between neighbouring ranks of a pipeline."""
    sent_bytes = tokens(c) * c.hidden * c.element_bytes / c.tp
    return np.where(c.pp > 1, hand_over_s(c, k, sent_bytes, c.gpus / c.pp), 0.0)


def tensor_s(c: Columns, k: Constants) -> tuple[Floats, Floats]:
    """Return the seconds of tensor- and context-parallel messages in one block, forward and backward.

    Each pass has two all-reduces or their equivalent. Keys and values are gathered once forward and twice
    backward.
    """
    one = 2 * gather_s(c, k, tokens(c) * c.hidden * c.element_bytes, c.tp, 0 * c.tp + 1)
    exposed = np.where(c.overlap_tensor > 0, k.tensor_exposed, 1.0)
    pairs = 2 * c.kv_heads * c.head_dim / c.tp * c.element_bytes * c.micro_batch * c.seq
    ring = gather_s(c, k, pairs, c.cp, c.tp) * k.tensor_exposed
    return 2 * exposed * one + ring, (2 + 2 * c.recompute_full) * exposed * one + 2 * ring


def expert_s(c: Columns, k: Constants) -> tuple[Floats, Floats]:
    """Return the exposed seconds to send tokens to their experts and back, in the forward and the backward pass."""
    sent = tokens(c) / c.tp * c.top_k * c.hidden * c.element_bytes
    once = sparse_share(c) * 2 * exchange_s(c, k, sent, c.ep, 0 * c.ep + 1) * k.expert_exposed
    return once, once


def shard_s(c: Columns, k: Constants, each: BlockTime, blocks: Floats) -> tuple[Floats, Floats]:
    """Return the exposed seconds to gather sharded weights in each pass, and to reduce-scatter the gradients."""
    size = c.shard * c.cp * c.shard_parameters
    weights = (c.block_params + c.expert_params / c.ep) / c.layers / c.tp * blocks
    trained = np.where(c.adapters > 0, 0.0, 1.0)
    half = np.minimum(np.minimum(c.element_bytes, 2.0), c.frozen_bits / 8)
    slower = np.where(c.piecewise > 0, k.piecewise, 1.0)
    once = gather_s(c, k, weights * half, np.maximum(size, 1.0), c.tp) / slower
    forward = _shows(once, blocks * each.forward.total, k)
    return forward, _shows(once + trained * once, blocks * each.backward.total, k)


def _reduce_s(c: Columns, k: Constants, compute: Floats) -> Floats:
    """Return the exposed seconds to reduce gradients over replicas.

    If the optimizer is sharded, they include the time to gather the weights. The reduction overlaps with the last
    backward pass, and the gathering with the next forward pass. Replicas of sharded weights reduce only their shards.
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
    each = np.where(c.counted > 0, c.optimizer_moved, _OPTIMIZER_BYTES)
    return np.where(c.adapters > 0, c.trainable, own) * each / c.memory_bandwidth
