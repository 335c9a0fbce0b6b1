"""shard: parameters, gradients and optimizer state are split over ranks, and gathered for a block at a time (FSDP2).

With n ranks each keeps 1/n of parameters, gradients and optimizer state: for Adam in fp32, 16 bytes a parameter become
16/n and those of the largest block. Costs per step an all-gather for forward, one for backward and a reduce-scatter of
gradients. With dp > 1 as well, parameters are split within a group and replicated over groups (hybrid).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from paceline.train.precision import Precision


def shard(model: Any, blocks: Sequence[Any], mesh: Any, precision: Precision, reshard: bool) -> None:
    """Split a model in place, block by block.

    Args:
        model: A module; tensor parallel parameters are split once more.
        blocks: Its repeated blocks, which are gathered one at a time.
        mesh: One dimension to split over, or two: replicas, then shards.
        precision: Its 16-bit format is what parameters are gathered in; gradients are reduced in fp32.
        reshard: Whether a block's parameters are given back after forward and gathered again for backward.
    """
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=precision.dtype(), reduce_dtype=torch.float32)
    for block in blocks_apart(model, blocks):
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)


def blocks_apart(model: Any, blocks: Sequence[Any]) -> list[Any]:
    """Return the blocks that share no parameter with the rest; others are gathered with it, which needs them too."""
    uses = Counter(id(each) for _, each in model.named_parameters(remove_duplicate=False))
    return [block for block in blocks if _is_apart(block, uses)]


def _is_apart(block: Any, uses: Counter[int]) -> bool:
    own = Counter(id(each) for _, each in block.named_parameters(remove_duplicate=False))
    return all(uses[parameter] == count for parameter, count in own.items())


def set_sync(model: Any, on: bool) -> None:
    """Let the coming micro-step reduce gradients, or add them up unreduced."""
    model.set_is_last_backward(on)
    model.set_requires_gradient_sync(on)
