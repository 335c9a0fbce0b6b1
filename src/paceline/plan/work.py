"""How long does one device compute on one micro-batch? One block forward, one backward, and the output layer.

A product (m, k)·(k, n) takes 2mnk at the ceiling that large products reach, and a part of the time to read and write
its operands. Flash attention has 4·t·s·h·d operations forward (half of it where causal) and 2.5 times that backward;
unfused attention moves its scores through memory besides. All the rest moves activations. Nothing is faster than its
kernels can be launched.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.plan.columns import Columns, Floats
from paceline.plan.constants import Constants

_HIDDEN_PASSES = 14.0  # of the hidden width forward: two norms, two residual sums, rotary, copies
_BACKWARD_PASSES = 1.7  # what the backward pass moves against the forward one
# Kernels of a block forward, and what its kinds add.
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
class Parts:
    """Seconds by part, each of shape (cases,)."""

    matrix: Floats
    attention: Floats
    bandwidth: Floats
    launch: Floats  # what launching adds

    @property
    def total(self) -> Floats:
        """Their sum."""
        return self.matrix + self.attention + self.bandwidth + self.launch


@dataclass(frozen=True, kw_only=True)
class Block:
    """One block of a micro-batch on one device: both passes, recomputation in the backward one."""

    forward: Parts
    backward: Parts


def tokens(c: Columns) -> Floats:
    """Tokens of a micro-batch that one rank of a tensor-parallel group works on."""
    return c.micro_batch * c.seq / c.cp


def sparse_share(c: Columns) -> Floats:
    """Share of the blocks that have experts."""
    return c.sparse_layers / c.layers


def block(c: Columns, k: Constants) -> Block:
    """Return the mean block of a model."""
    matrix, scores, moved = _matrix_s(c, k), _attention_s(c, k), _moved_s(c, k)
    again = c.recompute_full
    beside = _beside_s(c, k)
    forward = _floored(c, k, matrix + beside, scores[0], moved, 1.0 + 0.0 * matrix)
    weights = np.where(c.adapters > 0, 1.0, 2.0)  # frozen weights want no gradient of their own
    backward = _floored(
        c,
        k,
        (weights + again + 0.5 * c.recompute_operators) * matrix + (2.0 + again) * beside,
        scores[1] + np.minimum(1.0, again + c.recompute_attention) * scores[0],
        (_BACKWARD_PASSES + again + 0.8 * c.recompute_operators + 0.6 * c.recompute_cheap) * moved,
        _BACKWARD_LAUNCHES + again,
    )
    return Block(forward=forward, backward=backward)


def head_s(c: Columns, k: Constants) -> Floats:
    """The output layer and the loss, forward and backward, on the rank that has them."""
    t = tokens(c) * c.head_share
    share = np.where(c.wide > 0, k.matrix_wide, 1.0) * _by_family(c, k)
    products = 3 * _product_s(
        c, k, (t, c.vocab / c.tp, c.hidden), c.ceiling_wide * share, np.maximum(2.0, c.element_bytes)
    )
    return products + k.loss_passes * t * c.vocab / c.tp * c.element_bytes / c.memory_bandwidth


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
    """Low-rank products beside frozen ones, which are of 16 bits or more."""
    share = np.where(c.wide > 0, k.matrix_wide, 1.0) * _by_family(c, k)
    flops = 2 * tokens(c) * c.trainable / c.layers / c.tp
    return np.where(c.deep_adapters == 1, flops / (c.ceiling_wide * share), 0.0)


def _feed_forward_s(c: Columns, k: Constants, t: Floats, wide: Floats, speed: Floats, width: Floats) -> Floats:
    up = (c.matrices - 1) * wide
    return _product_s(c, k, (t, up, c.hidden), speed, width) + _product_s(c, k, (t, c.hidden, wide), speed, width)


def _experts_s(c: Columns, k: Constants, speed: Floats, width: Floats) -> Floats:
    """The experts of one rank, each on its share of the tokens that reach it, and those that every token passes."""
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
    """Forward and backward, without projections."""
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
    """Activations that element-wise work of a block moves forward."""
    along = np.where(c.sequence_parallel > 0, c.tp, 1.0)
    sparse = sparse_share(c)
    wide = (1 - sparse) * c.ffn + sparse * (c.top_k * c.expert_ffn + c.shared_ffn)
    per_token = _HIDDEN_PASSES * c.hidden / along + (2.0 + c.gated) * wide / c.tp
    quantised = c.low_bits * (3 * c.hidden + wide) / c.tp
    routed = k.expert_passes * sparse * c.top_k * c.hidden / c.tp
    passes = np.where(c.fused > 0, k.passes_fused, k.passes_eager)
    elements = passes * (per_token + quantised) + routed
    frozen = np.where(c.frozen_bits < 16, 3.0 * c.block_params / c.layers / c.tp, 0.0)
    return (tokens(c) * elements * c.element_bytes + frozen) / c.memory_bandwidth


def _floored(c: Columns, k: Constants, matrix: Floats, scores: Floats, moved: Floats, launches: Floats) -> Parts:
    """Parts of one pass, with what waiting for launches adds: a smooth maximum of the device's and the host's time."""
    kernels = np.where(c.fused > 0, _LAUNCHES["fused"], _LAUNCHES["eager"]) + sparse_share(c) * _LAUNCHES["expert"]
    adapters = np.maximum(1.0, c.wide_adapters * (4 + c.matrices) / 2)  # against those on queries and values
    kernels = kernels * (1 + 0.5 * c.low_bits) + (c.deep_adapters == 1) * _LAUNCHES["adapter"] * adapters
    kernels = kernels + (c.span > 1) * _LAUNCHES["relative"]
    kernels = kernels + c.shard_parameters * _LAUNCHES["sharded"] + (c.frozen_bits < 16) * _LAUNCHES["quantised"]
    host = kernels * launches * np.where(c.fused > 0, k.kernel_fused_s, k.kernel_eager_s)
    busy = matrix + scores + moved
    return Parts(matrix=matrix, attention=scores, bandwidth=moved, launch=(busy**4 + host**4) ** 0.25 - busy)
