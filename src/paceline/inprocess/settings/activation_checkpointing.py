"""memory.checkpoint_every, memory.activation_budget: recompute repeated blocks of a model in the backward pass.

A block is one of several children of one class that have submodules: a layer of a transformer, or a block in a stage of
a residual network. Several consecutive ``nn.Sequential`` modules with the same classes are blocks too. With a budget,
the first forward measures how many bytes each block saves, and as few blocks as possible are recomputed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from paceline.inprocess import hooks
from paceline.inprocess.settings import confirmation, outermost_forward, recompute

_EVERY, _BUDGET = "memory.checkpoint_every", "memory.activation_budget"


def every(torch: Any, count: int) -> None:
    """Recompute every ``count``-th block."""
    blocks = _Blocks(torch)

    def choose(module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        found = blocks.new_in(module, _EVERY)
        if found:
            blocks.forget(found[::count], found, _EVERY)
        return forward(*args, **kwargs)

    outermost_forward.around(torch, choose)


def within(torch: Any, budget: float) -> None:
    """Recompute as many blocks as needed, so that the other blocks save at most this share of the activation memory."""
    blocks = _Blocks(torch)

    def choose(module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        found = blocks.new_in(module, _BUDGET)
        if not found:
            return forward(*args, **kwargs)
        result, kept = blocks.weighed(found, lambda: forward(*args, **kwargs))
        blocks.forget(chosen(found, kept, budget), found, _BUDGET)
        return result

    outermost_forward.around(torch, choose)


def chosen(found: Sequence[Any], kept: Sequence[int], budget: float) -> list[Any]:
    """Return the blocks to recompute: the first ones, because their activations are in memory for the longest time."""
    left, total, taken = sum(kept), sum(kept), []
    for block, size in zip(found, kept, strict=True):
        if left <= budget * total:
            break
        taken.append(block)
        left -= size
    return taken


def repeated(torch: Any, module: Any) -> list[Any]:
    """Return the blocks of a model in order: two or more children of one kind, with parameters and submodules."""
    sequential, lists = torch.nn.Sequential, (torch.nn.ModuleList, torch.nn.ModuleDict)
    in_a_row = isinstance(module, (sequential, *lists))
    kinds = [_kind(child, sequential) for child in module.children()]
    found: list[Any] = []
    for child, kind in zip(module.children(), kinds, strict=True):
        alike = kinds.count(kind) > 1 and next(child.parameters(), None) is not None
        has_parts = next(child.children(), None) is not None
        whole = alike and has_parts and not isinstance(child, lists)
        if whole and not isinstance(child, sequential):
            found.append(child)
        else:
            found += repeated(torch, child) or ([child] if whole and in_a_row else [])
    return found


def _kind(module: Any, sequential: Any) -> tuple[type, ...]:
    """Return the key by which modules are compared: the class, and for an nn.Sequential the classes in it."""
    return (type(module), *(map(type, module.children()) if type(module) is sequential else ()))


class _Blocks:
    """The recomputed blocks, and the number of bytes that blocks save for the backward pass."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._known: WeakSet[Any] = WeakSet()  # models that were searched for blocks
        self._forgetful: WeakSet[Any] = WeakSet()
        self._weighed: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._patch()

    def new_in(self, module: Any, key: str) -> list[Any]:
        """Return the blocks of a model in its first training forward; empty for other models."""
        if module in self._known or not module.training or not self._torch.is_grad_enabled():
            return []
        self._known.add(module)
        if any(getattr(m, "gradient_checkpointing", False) for m in module.modules()):
            confirmation.refused(key, f"{type(module).__name__} already recomputes its activations")
            return []
        if getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod"):
            confirmation.refused(
                key, f"{type(module).__name__} is compiled, so its blocks cannot be recomputed one by one"
            )
            return []
        found = repeated(self._torch, module)
        if not found:
            confirmation.refused(
                key, f"{type(module).__name__} has no repeated blocks (at least two blocks of the same class)"
            )
        return found

    def forget(self, some: Sequence[Any], found: Sequence[Any], key: str) -> None:
        """Recompute `some` of the blocks `found` from now on, and record that the setting took effect."""
        self._forgetful.update(some)
        confirmation.took(
            key, f"{len(some)} of {len(found)} blocks ({type(found[0]).__name__}) are recomputed in the backward pass"
        )

    def weighed(self, found: Sequence[Any], run: Callable[[], Any]) -> tuple[Any, list[int]]:
        """Run a forward; return its result and the number of bytes that each block saves for the backward pass."""
        for block in found:
            self._weighed[block] = 0
        try:
            return run(), [self._weighed[block] for block in found]
        finally:
            self._weighed.clear()

    def _patch(self) -> None:
        module_class, compiling = self._torch.nn.Module, self._torch.compiler.is_compiling
        original = module_class.__call__
        grad_enabled = self._torch.is_grad_enabled

        @functools.wraps(original)
        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            if compiling():
                return original(module, *args, **kwargs)
            if self._forgetful and module in self._forgetful and module.training and grad_enabled():
                forward = functools.partial(original, module)
                return recompute.forgetful(self._torch, module, forward, args, kwargs)
            if self._weighed and module in self._weighed:
                return self._weigh(module, functools.partial(original, module, *args, **kwargs))
            return original(module, *args, **kwargs)

        hooks.install(module_class, "__call__", __call__)

    def _weigh(self, block: Any, run: Callable[[], Any]) -> Any:
        own = {p.untyped_storage().data_ptr() for p in block.parameters()}

        def pack(tensor: Any) -> Any:
            place = tensor.untyped_storage().data_ptr()
            if place not in own:
                own.add(place)
                self._weighed[block] += tensor.untyped_storage().nbytes()
            return tensor

        with self._torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            return run()
