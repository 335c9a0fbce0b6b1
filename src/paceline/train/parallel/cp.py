"""cp: each rank has a part of every sequence; attention gathers all keys and values.

Rank r of n has positions r L / n to (r + 1) L / n. All of a transformer but attention works on each position alone.
Before attention keys and values are gathered over the ranks, and their gradients are summed back (Grattafiori et al.
2024, The Llama 3 Herd of Models, section 3.3.2). Keeps 1/n of all activations but keys and values; costs per layer an
all-gather of these in forward and a reduce-scatter in backward. Of causal attention the last rank does most.

torch's own `context_parallel` knows the attention kernels of GPUs only (torch 2.13), and a model that counts positions
by itself would take its part for the whole; here it asks for its `positions`. One that counts itself, or mixes
positions in another way, is refused: at the first forward its output is compared with that of whole sequences
(`cp_check.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from paceline.core.errors import UsageError
from paceline.train.batches import like

_here = threading.local()  # .part: of this thread's forward


def positions(length: int, device: Any = None) -> Any:
    """Return the positions in the whole sequence of what this rank has of it: int64, [length].

    Args:
        length: Of this rank's part.
        device: Where they are to be.
    """
    import torch

    first = getattr(_here, "part", 0) * length
    return first + torch.ones(length, dtype=torch.int64, device=device).cumsum(0) - 1


def part_of(batch: Any, part: int, parts: int) -> Any:
    """Return a rank's part of the sequences of a batch: tensors [batch, length, ...] in tuples, lists and dicts.

    Raises:
        UsageError: The sequences cannot be split into equal parts.
    """
    if isinstance(batch, Mapping):
        return {key: part_of(value, part, parts) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return like(batch, [part_of(value, part, parts) for value in batch])
    if batch.ndim < 2 or batch.shape[1] % parts:
        raise UsageError(
            f"cp={parts}: dimension 1 of the batch {list(batch.shape)} must be a multiple of {parts}; change "
            f"the sequence length"
        )
    length = batch.shape[1] // parts
    return batch.narrow(1, part * length, length)


def split(model: Any, blocks: Sequence[Any], mesh: Any) -> None:
    """Let a model's attention see the whole sequence, in place.

    Args:
        model: A module that calls `torch.nn.functional.scaled_dot_product_attention`.
        blocks: Its repeated blocks.
        mesh: The ranks that have the parts, one dimension.
    """
    seen: list[bool] = []
    for block in blocks:  # each by itself: what is computed again in backward must see it too
        block.forward = partial(_run, block.forward, mesh, seen)
    model.forward = partial(_run, model.forward, mesh, seen)
    model.register_forward_hook(partial(_check_seen, seen))


def _check_seen(seen: list[bool], model: Any, *_: Any) -> None:
    if not seen:
        raise UsageError(
            f"cp: {type(model).__name__} does not call torch.nn.functional.scaled_dot_product_attention, so the "
            "parts of a sequence would not attend to each other; use shard or tp instead of cp"
        )


def _run(forward: Callable[..., Any], mesh: Any, seen: list[bool], *args: Any, **kwargs: Any) -> Any:
    """Run a forward whose attention sees the whole sequence."""
    if hasattr(_here, "part") or hasattr(_here, "unsplit"):
        return forward(*args, **kwargs)
    _here.part = mesh.get_local_rank()
    try:
        with _mode(mesh, seen):
            return forward(*args, **kwargs)
    finally:
        del _here.part


@contextmanager
def unsplit() -> Iterator[None]:
    """Have models take what they are given for whole sequences inside, in this thread."""
    _here.unsplit = True
    try:
        yield
    finally:
        del _here.unsplit


def length_of(given: Any) -> int | None:
    """Return the length of the sequences in what a model is called with: of its first tensor [batch, length, ...]."""
    if isinstance(given, Mapping):
        given = tuple(given.values())
    if isinstance(given, tuple | list):
        return next((length for value in given if (length := length_of(value)) is not None), None)
    return int(given.shape[1]) if getattr(given, "ndim", 0) > 1 else None


def is_split(tensor: Any, length: int | None) -> bool:
    """Return whether a tensor has sequences of this length in dimension 1."""
    return tensor.ndim > 1 and tensor.shape[1] == length


def _mode(mesh: Any, seen: list[bool]) -> Any:
    """Return the context in which attention gathers."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Whole(TorchFunctionMode):
        """Sees the functions of torch that a forward calls."""

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            options = kwargs or {}
            if function is torch.nn.functional.scaled_dot_product_attention:
                seen[:] = [True]
                return _attend(mesh, *args, **options)
            return function(*args, **options)

    return Whole()


def _attend(mesh: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, *args: Any, **options: Any) -> Any:
    """Attend with this rank's queries to the keys and values of all ranks.

    Args:
        mesh: The ranks, in the order of their parts.
        query: [batch, heads, part, head].
        key: The same.
        value: The same.
        attn_mask: Must be None.
        args: dropout_p and is_causal, as torch takes them.
        options: The same by name, and scale, enable_gqa.
    """
    import torch
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
    from torch.nn.functional import scaled_dot_product_attention

    if attn_mask is not None:
        raise UsageError("cp: attention with an attn_mask cannot be split; use is_causal=True, or leave out cp")
    options.update(zip(("dropout_p", "is_causal"), args, strict=False))
    causal = options.pop("is_causal", False)
    part, length = mesh.get_local_rank(), query.shape[-2]
    own = torch.stack([key, value])
    whole = DTensor.from_local(own, mesh, [Shard(own.ndim - 2)], run_check=False).redistribute(placements=[Replicate()])
    key, value = whole.to_local(grad_placements=[Partial()]).unbind()  # each rank has a part of their gradients
    if not causal:
        return scaled_dot_product_attention(query, key, value, **options)
    end = (part + 1) * length  # what comes later is not seen
    mask = torch.ones(length, end, dtype=torch.bool, device=query.device).tril(part * length)
    return scaled_dot_product_attention(query, key[..., :end, :], value[..., :end, :], mask, **options)
