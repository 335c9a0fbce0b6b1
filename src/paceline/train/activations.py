"""Activation checkpointing: repeated blocks save less in the forward pass and recompute the rest in the backward pass.

full        every block saves its input only (Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost); about a
            third more compute
selective   each block saves the results of matrix products and attention (Korthikanti et al. 2022)
a share     the fewest blocks are recomputed that reduce the saved bytes, measured in the first forward pass, to that
            share

Blocks are children of one module that have the same class and submodules of their own. A recomputed block draws
the same random numbers again. A block with BatchNorm is refused, because recomputation would update its running
statistics twice per batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from typing import Any

from paceline.core.errors import UsageError
from paceline.train.gradients import is_number


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Settings of gradient accumulation and activation checkpointing; table ``[memory]`` of a recipe."""

    micro_batches: int | None = None  # parts of a batch, one after the other; None: `Recipe.micro_batches` chooses
    checkpoint_every: int | None = None  # 1: every block, 2: every second one
    activation_budget: float | None = None  # share of the blocks' activation bytes that may be saved, 0 to 1
    selective: bool = False

    def __post_init__(self) -> None:
        for name in ("micro_batches", "checkpoint_every"):
            count = getattr(self, name)
            if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
                raise UsageError(f"memory.{name} = {count!r} is not allowed; it takes a whole number from 1 on")
        budget = self.activation_budget
        if budget is not None and not (is_number(budget) and 0 <= budget <= 1):
            raise UsageError(f"memory.activation_budget = {budget!r} is not allowed; it takes a share from 0 to 1")
        ways = [self.checkpoint_every is not None, budget is not None, self.selective]
        if sum(ways) > 1:
            raise UsageError(
                "memory: checkpoint_every, activation_budget and selective exclude each other; set only one of them"
            )

    def changed(self, micro_batches: int | None, how: str | None) -> Memory:
        """Return these settings with the options of the command line applied.

        Args:
            micro_batches: The number of micro-batches; None keeps the current number.
            how: ``none``, ``full``, ``selective`` or a share as text; None keeps the current checkpointing.
        """
        ways = self if how is None else replace(_named(how), micro_batches=self.micro_batches)
        return ways if micro_batches is None else replace(ways, micro_batches=micro_batches)

    def check(self, model: Any, blocks: Sequence[Any]) -> None:
        """Check that the blocks of a model can be recomputed, if these settings recompute any.

        Raises:
            UsageError: The model has no repeated blocks, or its blocks contain BatchNorm.
        """
        if self.checkpoint_every is not None or self.activation_budget is not None or self.selective:
            _check_blocks(blocks, model)
            _leave_out_caches(model)

    def apply(self, blocks: Sequence[Any]) -> None:
        """Turn on activation checkpointing for the blocks of this rank.

        Args:
            blocks: Modules whose forward methods are replaced in place. The names of their parameters stay.
        """
        if self.checkpoint_every is None and self.activation_budget is None and not self.selective:
            return
        if self.activation_budget is not None:
            _Budget(blocks, self.activation_budget).weigh()
            return
        for block in blocks[:: self.checkpoint_every or 1]:
            _forget(block, self.selective)


def _named(how: str) -> Memory:
    """Return the activation checkpointing that a word on the command line selects."""
    known = {"none": Memory(), "full": Memory(checkpoint_every=1), "selective": Memory(selective=True)}
    if how in known:
        return known[how]
    try:
        return Memory(activation_budget=float(how))
    except ValueError:
        raise UsageError(
            f"activations {how!r}: choose one of {', '.join(known)}, or a share to keep, from 0 to 1"
        ) from None


def blocks_of(module: Any) -> list[Any]:
    """Return a model's repeated blocks in order: children with the same class that contain layers with parameters."""
    from torch import nn

    containers = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
    kinds = [type(child) for child in module.children()]
    found: list[Any] = []
    for child in module.children():
        alike = kinds.count(type(child)) > 1 and next(child.parameters(), None) is not None
        if alike and next(child.children(), None) is not None and not isinstance(child, containers):
            found.append(child)
        else:
            found += blocks_of(child)
    return found


def _check_blocks(blocks: Sequence[Any], model: Any) -> None:
    from torch.nn.modules.batchnorm import _NormBase

    if not blocks:
        raise UsageError(
            f"{type(model).__name__} has no repeated blocks that could be recomputed; leave out the activation settings"
        )
    for block in blocks:
        if any(isinstance(part, _NormBase) and part.track_running_stats for part in block.modules()):
            raise UsageError(
                f"{type(block).__name__} contains BatchNorm, whose statistics would count a recomputed batch twice; "
                "leave out the activation settings"
            )


def _leave_out_caches(model: Any) -> None:
    """Turn off the key-value cache of Hugging Face models in training: recomputation would append to it twice."""
    for part in model.modules():
        if (
            getattr(getattr(part, "config", None), "use_cache", False)
            and "use_cache" in signature(part.forward).parameters
        ):
            part.register_forward_pre_hook(_without_cache, with_kwargs=True)


def _without_cache(part: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    unsaid = part.training and kwargs.get("use_cache") is None
    return args, {**kwargs, "use_cache": False} if unsaid else kwargs


def _forget(block: Any, selective: bool) -> None:
    """Turn on activation checkpointing for one block: recompute all its operations, or all but the costly ones."""
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    contexts = partial(create_selective_checkpoint_contexts, _kept()) if selective else None
    options = {"context_fn": contexts} if contexts else {}
    block.forward = partial(checkpoint, block.forward, use_reentrant=False, **options)


def _kept() -> list[Any]:
    """Return the operators whose results selective checkpointing saves: matrix products, convolutions and attention."""
    import torch

    names = (
        "mm",
        "bmm",
        "addmm",
        "convolution",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
    )
    return [getattr(torch.ops.aten, name).default for name in names]


class _Budget:
    """Measures the bytes that each block saves in its first forward pass, then checkpoints blocks to meet a budget."""

    def __init__(self, blocks: Sequence[Any], share: float) -> None:
        self._blocks = blocks
        self._share = share
        self._bytes: dict[int, int] = {}

    def weigh(self) -> None:
        """Replace the forward method of each block by one that measures its saved bytes in its first call."""
        for number, block in enumerate(self._blocks):
            block.forward = partial(self._weighed, number, block.forward)

    def _weighed(self, number: int, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        import torch

        if not torch.is_grad_enabled():  # no activations are saved without gradients
            return forward(*args, **kwargs)
        seen: dict[int, int] = {}

        def pack(tensor: Any) -> Any:
            storage = tensor.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes()
            return tensor

        parameters = {p.untyped_storage().data_ptr() for p in self._blocks[number].parameters()}
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = forward(*args, **kwargs)
        self._bytes[number] = sum(size for where, size in seen.items() if where not in parameters)
        self._blocks[number].forward = forward
        if len(self._bytes) == len(self._blocks):
            self._choose()
        return result

    def _choose(self) -> None:
        sizes = [self._bytes[number] for number in range(len(self._blocks))]
        for number in chosen(sizes, self._share):
            _forget(self._blocks[number], selective=False)


def chosen(sizes: Sequence[int], share: float) -> list[int]:
    """Return the indices of the blocks to recompute so that the others save at most a share of all bytes.

    The first blocks are taken because their activations stay in memory longest.

    Args:
        sizes: Bytes that each block saves for backward.
        share: The share of all bytes that may be saved, 0 to 1.
    """
    left, total, taken = sum(sizes), sum(sizes), []
    for number, size in enumerate(sizes):
        if left <= share * total:
            break
        taken.append(number)
        left -= size
    return taken
