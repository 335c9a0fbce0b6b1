"""Tensors that share memory with a weight in one process, such as the values of `model.state_dict()`.

In one process, such a tensor changes when the weight changes, and writing to the tensor changes the weight. With
sharded weights, such a tensor has memory of its own. Using it copies changed values of the weight into it, and writing
to it changes the weight. Both need all ranks, so they happen in the thread that trains. Another thread, such as one
that saves a checkpoint, sees the values of the last use.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from paceline.inprocess.identity import IdentityMap
from paceline.inprocess.other_threads import objects_of
from paceline.train.unmodified.state import Spread

UNVERSIONED = ("apply_", "map_", "map2_")  # in-place functions that do not increase the version counter
_made: set[str] = set()  # empty until the first alias is made
_links: IdentityMap[weakref.ref[Link]] = IdentityMap()  # of each sharded weight that has had aliases
_writes = itertools.count(1)
_last_write = [0]


def note_write() -> None:
    """Record a change of sharded weights, because some changes do not increase the version counter of a tensor."""
    _last_write[0] = next(_writes)


@functools.cache
def _kind() -> Any:
    import torch

    class Alias(torch.Tensor):
        link: Link

        @classmethod
        def __torch_function__(cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            used: list[tuple[Any, Any, int]] = []

            def plain(value: Any) -> Any:
                if not isinstance(value, cls):
                    return value
                own = _up_to_date(value)
                used.append((value, own, own._version))
                return own

            args, kwargs = torch.utils._pytree.tree_map(plain, (args, kwargs or {}))
            found = function(*args, **kwargs)
            for alias, own, version in used:
                if own._version != version or getattr(function, "__name__", "") in UNVERSIONED:
                    alias.link.write()
            return next((alias for alias, own, _ in used if found is own), found)

    return Alias


class Link:
    """State that all aliases of one sharded weight share: the weight, and a tensor with the whole values."""

    def __init__(self, weight: Any, memory: Any) -> None:
        """Store a sharded weight, and a plain tensor with the current values of the whole weight."""
        self.weight, self._memory, self._thread = weight, memory, threading.get_ident()
        self._seen = self._stamp()
        _links.set(weight, weakref.ref(self))
        _made.add("aliases")

    def _stamp(self) -> tuple[int, ...]:
        """Return a value that changes when the weight changes, by an optimizer or by the program."""
        local = self.weight._local_tensor
        return _last_write[0], local.data_ptr(), local._version, self.weight._version

    def read(self) -> None:
        """Copy the current values of the weight into the memory, if the weight has changed."""
        if self.weight is None or threading.get_ident() != self._thread or self._seen == self._stamp():
            return
        self.take(self.weight.detach().full_tensor())

    def take(self, values: Any) -> Any:
        """Copy the current values of the whole weight into the memory, and return the memory."""
        import torch

        with torch.no_grad():
            self._memory.copy_(values)
        self._seen = self._stamp()
        return self._memory

    def write(self) -> None:
        """Copy the values in the memory into the weight."""
        import torch

        if self.weight is None:
            return
        with torch.no_grad():
            self.weight.copy_(self._memory.detach().to(self.weight.device))
        note_write()
        self._seen = self._stamp()


def _up_to_date(alias: Any) -> Any:
    """Return an alias as a plain tensor with the current values of its weight."""
    import torch

    alias.link.read()
    with torch._C.DisableTorchFunctionSubclass():
        return alias.as_subclass(torch.Tensor)


def _link_of(weight: Any) -> Link | None:
    """Return the `Link` of a weight that still has aliases, or None."""
    found = _links.get(weight)
    link = found() if found is not None else None
    return link if link is not None and link.weight is not None else None


def aliased(value: Any, weight: Any) -> Any:
    """Return the values of a sharded weight as a whole tensor that is an alias of the weight.

    All aliases of a weight share one memory, as they share that of the weight in one process.

    Args:
        value: A plain tensor with the present values of the whole weight; its memory may be used.
        weight: The sharded weight, or a sharded tensor of an optimizer.
    """
    import torch

    link = _link_of(weight)
    if (
        value.untyped_storage().nbytes() != value.nbytes
    ):  # a part of a padded tensor, which some writers of files refuse
        value = value.clone()
    memory = value if link is None else link.take(value)
    with torch._C.DisableTorchFunctionSubclass():
        found = memory.detach().as_subclass(_kind())
    found.link = link or Link(weight, value)
    return found


def adopt(value: Any, weight: Any) -> None:
    """Make a tensor an alias of a sharded weight, after the program has assigned the tensor to ``weight.data``.

    In one process, the tensor and the weight share memory after the assignment.

    Args:
        value: The tensor. It is not changed if it is a part of a larger tensor or records gradients.
        weight: The sharded weight, which already has the values of the tensor.
    """
    import torch

    if type(value) is not torch.Tensor or value.requires_grad or value.untyped_storage().nbytes() != value.nbytes:
        return
    plain = value.detach()
    value.__class__ = _kind()
    value.link = Link(weight, plain)


def part(weight: Any) -> None:
    """Separate a weight from its aliases before the weight gets new memory. The aliases keep the old values."""
    if _links.get(weight) is None:
        return
    values = weight.detach().full_tensor()  # needs all ranks, and is done also if this rank has no alias any more
    link = _link_of(weight)
    if link is not None:
        link.take(values)
        link.weight = None


def current(values: Any) -> Any:
    """Return values with each alias replaced by a plain tensor with the current values of its weight."""
    if not _made:
        return values
    import torch

    return torch.utils._pytree.tree_map(lambda value: _up_to_date(value) if type(value) is _kind() else value, values)


def weight_of(value: Any) -> Any:
    """Return the sharded weight of an alias; return other values unchanged."""
    found = value.link.weight if _made and type(value) is _kind() else None
    return value if found is None else found


def find(spread: Spread, weights: Iterable[tuple[str, Any]]) -> Callable[[dict[str, Any]], None]:
    """Find the tensors of the program that share memory with weights that are about to be sharded.

    Args:
        spread: The state of this rank; the program ends if a tensor is another view of a weight.
        weights: Names and whole weights.

    Returns:
        A function that takes the sharded weights by name and makes the tensors that were found aliases of them.
    """
    torch = spread.torch
    own = {weight.untyped_storage().data_ptr(): (name, weight) for name, weight in weights if weight.numel()}
    same: list[tuple[str, Any]] = []
    for value in objects_of(torch.Tensor):
        if type(value) is not torch.Tensor or value.layout != torch.strided or value.is_meta:
            continue
        name, weight = own.get(value.untyped_storage().data_ptr(), ("", None))
        if weight is None or value.grad_fn is not None:
            continue
        if _view(value) != _view(weight):
            spread.refuse(
                f"a tensor that shares memory with the weight {name} was made before the first call in training, when "
                "the weights are split; make a copy of it (clone()), or use dp in place of shard"
            )
        same.append((name, value))

    def rebind(split: dict[str, Any]) -> None:
        for name, value in same:
            plain = value.detach()
            value.__class__ = _kind()
            value.link = _link_of(split[name]) or Link(split[name], plain)

    return rebind


def _view(value: Any) -> tuple[Any, ...]:
    return value.shape, value.stride(), value.storage_offset(), value.dtype
