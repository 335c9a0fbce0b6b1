"""Context parallelism (cp): each rank has a part of every sequence; attention gathers all keys and values.

Rank r of n has positions r L / n to (r + 1) L / n. All layers of a transformer except attention treat each position
alone. Before attention, keys and values are gathered over the ranks, and their gradients are reduced back (Grattafiori
et al. 2024, The Llama 3 Herd of Models, section 3.3.2). Each rank keeps 1/n of all activations except keys and values.
The cost per layer is an all-gather of keys and values in forward and a reduce-scatter of their gradients in backward.
With causal attention the last rank computes most.

torch's own `context_parallel` supports only GPU attention kernels (torch 2.13), and a model that counts positions
itself would count from 0 on each rank. With this module, a model calls `positions` instead. A model that counts
positions itself, or mixes positions other than by attention, is refused: in the first forward pass its output is
compared with that of whole sequences (`cp_check.py`).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from paceline.core.errors import UsageError
from paceline.train.batch_samples import like

_here = threading.local()  # .part: this rank's part, during a forward pass of this thread
_model: list[weakref.ref[Any]] = []  # the model of the newest engine, if this engine has cp


def positions(length: int, device: Any = None) -> Any:
    """Return the positions in the whole sequence of this rank's part: int64, [length].

    Args:
        length: The length of this rank's part.
        device: The device of the result.

    Raises:
        UsageError: The newest engine has cp, and no forward pass of its model is running.
    """
    import torch

    if _model and _model[0]() is not None and not is_running():
        raise UsageError(
            "cp: positions() is called outside of the forward pass of the model that setup() returned, where it is "
            "unknown which part of a sequence is meant; call it in forward()"
        )
    first = getattr(_here, "part", 0) * length
    return first + torch.ones(length, dtype=torch.int64, device=device).cumsum(0) - 1


def part_of(batch: Any, part: int, parts: int) -> Any:
    """Return one part of the sequences of a batch: tensors [batch, length, ...] in tuples, lists and dicts.

    Args:
        batch: The batch with whole sequences.
        part: The index of the part, from 0.
        parts: The number of parts.

    Raises:
        UsageError: The length is not a multiple of the number of parts.
    """
    if isinstance(batch, Mapping):
        return {key: part_of(value, part, parts) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return like(batch, [part_of(value, part, parts) for value in batch])
    if batch.ndim < 2:
        raise UsageError(
            f"cp={parts}: the batch contains a tensor {list(batch.shape)} without a dimension for "
            "positions, such as one number for each sample. cp splits all tensors of a batch along positions: expand "
            "this tensor to the length of the sequence, or use shard or tp instead of cp"
        )
    if batch.shape[1] % parts:
        raise UsageError(
            f"cp={parts}: dimension 1 of the batch {list(batch.shape)} must be a multiple of {parts}; change "
            f"the sequence length"
        )
    length = batch.shape[1] // parts
    return batch.narrow(1, part * length, length)


def split(model: Any, blocks: Sequence[Any], mesh: Any) -> None:
    """Make a model's attention use the keys and values of the whole sequence, in place.

    Args:
        model: A module that calls `torch.nn.functional.scaled_dot_product_attention`.
        blocks: Its repeated blocks.
        mesh: One-dimensional mesh of the ranks that hold the parts.
    """
    _model[:] = [weakref.ref(model)]
    seen: list[bool] = []
    for block in blocks:  # each block too, because recomputation in backward calls the block only
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
    """Run a forward pass in which attention uses the whole sequence."""
    if hasattr(_here, "part") or hasattr(_here, "unsplit"):
        return forward(*args, **kwargs)
    _here.part = mesh.get_local_rank()
    try:
        with _mode(mesh, seen):
            return forward(*args, **kwargs)
    finally:
        del _here.part


def forget() -> None:
    """Let `positions` count from 0 outside of forward passes, as without cp. Each new engine calls this first."""
    _model.clear()


@contextmanager
def unsplit() -> Iterator[None]:
    """Make models treat their inputs as whole sequences inside the context, in this thread."""
    if hasattr(_here, "unsplit"):
        yield
        return
    _here.unsplit = True
    try:
        yield
    finally:
        del _here.unsplit


def is_running() -> bool:
    """Return whether this thread is in a forward pass of the model or of its whole copy."""
    return hasattr(_here, "part") or hasattr(_here, "unsplit")


def length_of(given: Any) -> int | None:
    """Return the sequence length of a model's inputs: that of the first tensor [batch, length, ...], or None."""
    if isinstance(given, Mapping):
        given = tuple(given.values())
    if isinstance(given, tuple | list):
        return next((length for value in given if (length := length_of(value)) is not None), None)
    return int(given.shape[1]) if getattr(given, "ndim", 0) > 1 else None


def is_split(tensor: Any, length: int | None) -> bool:
    """Return whether dimension 1 of a tensor has this sequence length."""
    return tensor.ndim > 1 and tensor.shape[1] == length


def _mode(mesh: Any, seen: list[bool]) -> Any:
    """Return a context in which attention gathers keys and values."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Whole(TorchFunctionMode):
        """Redirects calls of scaled_dot_product_attention."""

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            options = kwargs or {}
            if function is torch.nn.functional.scaled_dot_product_attention:
                seen[:] = [True]
                return _attend(mesh, *args, **options)
            return function(*args, **options)

    return Whole()


def _attend(mesh: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, *args: Any, **options: Any) -> Any:
    """Compute attention of this rank's queries over the keys and values of all ranks.

    Args:
        mesh: The ranks, in the order of their parts.
        query: [batch, heads, length of this rank's part, head size].
        key: The same shape.
        value: The same shape.
        attn_mask: Must be None.
        args: dropout_p and is_causal, as torch takes them.
        options: Other arguments of torch's function by name: dropout_p, is_causal, scale, enable_gqa.
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
    key, value = whole.to_local(grad_placements=[Partial()]).unbind()  # each rank contributes a part of their gradients
    if not causal:
        return scaled_dot_product_attention(query, key, value, **options)
    end = (part + 1) * length  # later positions are masked
    mask = torch.ones(length, end, dtype=torch.bool, device=query.device).tril(part * length)
    return scaled_dot_product_attention(query, key[..., :end, :], value[..., :end, :], mask, **options)
