"""The peak memory of one device: weights, gradients, optimizer, activations in flight, logits, buffers.

Activations per token and block follow Korthikanti et al. (arXiv:2205.05198): 34h + 5as for a plain block in 16 bits,
counted tensor by tensor to cover grouped keys, gates and experts. A pipeline stage keeps the activations of all
micro-batches that its schedule starts before the first of them ends (`partition`). For a program whose kernels are not
fused, the saved bytes are those of the program itself (`models.counted_step`). Allocated memory is that of tensors.
Reserved memory is what torch's allocator has taken from the device. nvidia-smi also shows the CUDA context.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from paceline.plan.cost.columns import Columns, Floats, sparse_share, tokens
from paceline.plan.cost.constants import Constants
from paceline.plan.cost.partition import PipelineRank, end_places, weights_of

# Extra bytes that adapters keep for backward, per token and block, in multiples of the hidden width: low-rank
# adapters on queries and values keep input, dropout and outputs; scales on every layer keep all inputs and outputs.
_ADAPTED = {"lora": 9.0, "adapter_v2": 25.0}
# Adapters on more products (no published figures): counted from a Hugging Face Llama with PEFT's layers, whose norms
# and adapter inputs after dropout are in fp32; dropout also keeps its mask.
_NORMS, _ADAPTED_INPUT = 8.0, 5.0
_WAITING = 4.0  # bytes of a logit that waits for its backward pass, in fp32
_IN_PLACE = 4.0  # bytes of a logit whose gradient is computed in place
_QUANTISED_INPUTS = 16.0  # 4-bit products keep their inputs


@dataclass(frozen=True, kw_only=True)
class PeakMemory:
    """Peak memory of the fullest device by part, in bytes, each of shape (cases,)."""

    weights: Floats
    gradients: Floats
    optimizer: Floats
    activations: Floats
    logits: Floats
    buffers: Floats  # for sharding and communication
    workspace: Floats
    fragmentation: Floats  # reserved beyond allocated
    context: Floats

    @property
    def allocated(self) -> Floats:
        """Return the memory of tensors, in bytes."""
        return self.reserved - self.fragmentation

    @property
    def reserved(self) -> Floats:
        """Return the memory that torch's allocator has reserved, in bytes."""
        return self.total - self.context

    @property
    def total(self) -> Floats:
        """Return the memory that nvidia-smi shows for the process, in bytes."""
        parts: list[Floats] = [getattr(self, field.name) for field in fields(self)]
        return sum(parts[1:], start=parts[0])


def memory(c: Columns, k: Constants) -> PeakMemory:
    """Return the predicted peak memory of each case, on the first or the last pipeline rank (the fuller one)."""
    places = end_places(c)
    first, last = (memory_at(c, k, place) for place in places)
    at_head = (c.pp == 1) | (last.total > first.total)
    names = [field.name for field in fields(PeakMemory)]
    return PeakMemory(**{name: np.where(at_head, getattr(last, name), getattr(first, name)) for name in names})


def memory_at(c: Columns, k: Constants, place: PipelineRank) -> PeakMemory:
    """Return the predicted peak memory of one pipeline rank.

    If the weights are sharded, saving adapters gathers the whole model. The result is then the larger of the peaks in
    training and in saving.
    """
    w = weights_of(c, place)
    frozen = c.adapters > 0
    embeddings = c.embedding_params / c.tp
    kept = np.where(
        c.frozen_bits < 16, c.element_bytes, c.frozen_bits / 8
    )  # bytes of an embedding weight, which is never quantized
    held = np.where(frozen, (w.device - embeddings) * c.frozen_bits / 8 + embeddings * kept, 0.0)
    own = w.split(w.sharers, w.expert_sharers)
    stepped = np.where(c.shard_parameters > 0, own, w.split(w.replicas, w.expert_replicas))
    stepped = np.where(c.shard_optimizer > 0, stepped, w.device)
    activations, logits = _activations(c, k, place), _logits(c, k, place)
    saved = np.where(frozen & (c.shard_parameters > 0), held, 0.0)
    passing = activations + logits
    activations, logits = (np.where(saved > passing, 0.0, part) for part in (activations, logits))
    parts = {
        "weights": np.where(frozen, held / w.sharers + c.trainable * c.weight_bytes, own * c.weight_bytes),
        "gradients": np.where(frozen, c.trainable, own) * c.gradient_bytes,
        "optimizer": np.where(frozen, c.trainable, stepped) * c.optimizer_bytes,
        "activations": activations,
        "logits": logits,
        "buffers": np.where(saved > passing, saved + 2 * embeddings, _buffers(c)),
        "workspace": k.workspace + 0.0 * held,
    }
    parts = _counted(c, parts, place.kept * c.weight_saved * w.device, stepped)
    allocated = sum(parts.values(), start=0.0 * held)
    return PeakMemory(**parts, fragmentation=(k.reserved - 1) * allocated, context=k.context + 0.0 * held)


def _counted(c: Columns, parts: dict[str, Floats], converted: Floats, stepped: Floats) -> dict[str, Floats]:
    """Return the parts of the memory at the peak, for cases whose bytes were counted; other cases are left as they are.

    The peak is in the loss, with all activations, or in the optimizer step, with all gradients. In the loss there are
    gradients only if earlier micro-batches left some, or if the replicas keep buffers for them.

    Args:
        c: The cases.
        parts: Bytes by part, if all were there at the same time.
        converted: Bytes of converted weights that are saved for the backward pass.
        stepped: Number of weights that the optimizer of this device updates.
    """
    counted, kept = c.counted > 0, (c.micro_steps > 1) | (c.gpus > 1)
    passing, temporary = parts["activations"] + converted + parts["logits"], stepped * c.optimizer_peak
    gradients = np.where(kept, parts["gradients"], 0.0)
    in_loss = passing + gradients >= parts["gradients"] + temporary
    at_loss, at_end = counted & in_loss, counted & ~in_loss
    return parts | {
        "gradients": np.where(at_loss, gradients, parts["gradients"]),
        "optimizer": parts["optimizer"] + np.where(at_end, temporary, 0.0),
        "activations": np.where(at_end, 0.0, parts["activations"] + np.where(counted, converted, 0.0)),
        "logits": np.where(at_end, 0.0, parts["logits"]),
    }


def saved_tensor_bytes(c: Columns) -> Floats:
    """Return the bytes that one block saves for the backward pass of one micro-batch."""
    t, along = tokens(c), np.where(c.sequence_parallel > 0, c.tp, 1.0)
    everything = t * _block_bytes(c, along)
    scores = np.where(c.plain_attention > 0, 5 * t * c.heads * c.seq * c.span / c.tp, 0.0)
    scores = scores * (1 - np.minimum(1.0, c.recompute_attention))
    inputs = t * 2 * c.hidden / along
    some = inputs + 0.3 * everything  # the outputs of attention and of every second product
    whole = (everything + scores) * c.element_bytes / 2
    single = replace(c, tp=0.0 * t + 1, recompute_cheap=0.0 * t)
    share = _block_bytes(c, along) / _block_bytes(single, single.tp)
    whole = np.where(c.counted > 0, t * c.saved * share, whole)
    kept = (1 - c.recompute_operators) * whole + c.recompute_operators * some
    held: Floats = (1 - c.recompute_full) * kept + c.recompute_full * inputs
    return held


def _block_bytes(c: Columns, along: Floats) -> Floats:
    """Return the bytes per token that a block saves in 16 bits, without attention scores."""
    outer, pairs = c.heads * c.head_dim, 2 * c.kv_heads * c.head_dim
    queries = (2 * outer + 2 * pairs) / c.tp
    masks = np.where(c.plain_attention > 0, 2.0, 0.0)
    sparse = sparse_share(c)
    wide = (1 - sparse) * c.ffn + sparse * (c.top_k * c.expert_ffn + c.shared_ffn)
    inner = np.where(c.gated > 0, 6.0 + 2.0 * (1 - c.fused), 4.0) * wide / c.tp
    routed = sparse * 4 * c.top_k * c.hidden / along
    saved = c.recompute_cheap * (4 * c.hidden / along + 2 * wide / c.tp)
    saved = saved + c.low_bits * (2 * c.hidden / along + (outer + wide) / c.tp)  # products keep 8-bit inputs
    trained = (8 + masks) * c.hidden / along + queries + 2 * outer / c.tp + inner + routed - saved
    adapted = np.where(
        c.deep_adapters > 1, _ADAPTED["adapter_v2"], np.where(c.deep_adapters > 0, _ADAPTED["lora"], 0.0)
    )
    inputs = (2 + c.matrices) * c.hidden / along + (outer + wide) / c.tp
    inputs = c.wide_adapters * _ADAPTED_INPUT * inputs / c.hidden
    # with fp32 blocks these tensors are already counted
    inputs = np.where(c.wide > 0, inputs / 2, _NORMS + inputs)
    adapted = np.where(c.wide_adapters > 0, inputs, adapted)
    own = 4.0 + adapted + np.where(c.frozen_bits < 16, _QUANTISED_INPUTS, 0.0)
    frozen = own * c.hidden + queries + (2.0 + 4.0 * c.gated) * wide / c.tp
    return np.where(c.adapters > 0, frozen, trained)


def _activations(c: Columns, k: Constants, place: PipelineRank) -> Floats:
    """Return the bytes of the activations that are kept for all micro-batches, and of the block being recomputed."""
    again = np.maximum(c.recompute_full > 0, c.recompute_operators > 0)
    working = np.where(again, tokens(c) * _block_bytes(c, np.where(c.sequence_parallel > 0, c.tp, 1.0)), 0.0)
    saved = place.blocks * place.kept * saved_tensor_bytes(c)
    return np.where(c.counted > 0, saved + working, k.activation * (saved + working))


def _logits(c: Columns, k: Constants, place: PipelineRank) -> Floats:
    """Return the bytes of the logits in the current loss, and of those that are kept for a later backward pass."""
    each = np.where(c.loss_in_place > 0, _IN_PLACE, k.logits_bytes)
    each = np.where(c.counted > 0, c.logit_peak, each)
    bytes_each = np.where(place.logits > 0, each + (place.logits - 1) * _WAITING, 0.0)
    return bytes_each * tokens(c) * c.head_share * c.vocab / c.tp


def _buffers(c: Columns) -> Floats:
    """Return the bytes of gathered blocks and embeddings, and of a block's gradients; 0 if weights are not sharded."""
    block = (c.block_params + c.expert_params) / c.layers / c.tp
    ends = c.embedding_params / c.tp / c.pp
    gathered = 2 * ((2 - c.piecewise) * block + ends) + 2 * np.maximum(block, ends)
    buffers: Floats = c.shard_parameters * gathered
    return buffers
