"""Whole weights that a model had before it was split, and that the program may still hold.

A program knows a weight by a reference in a list, as a key of a dictionary, as a member of a set, by `id`, or by an
attribute that it has set on the weight. FSDP2 replaces each weight by a sharded one, which is another object. A whole
weight therefore becomes a *follower*: operations on it are done on the sharded weight in its place. Both have the same
hash, are equal, and `id` returns the same number for both.
"""

from __future__ import annotations

import builtins
import copy
import functools
import sys
import weakref
from typing import Any

from paceline.inprocess import hooks
from paceline.inprocess.identity import IdentityMap

_now: IdentityMap[weakref.ref[Any]] = IdentityMap()  # whole weight -> its sharded weight
_numbers: IdentityMap[int] = IdentityMap()  # sharded weight -> id of its whole weight
_LINK = "_paceline_other"  # attribute of each of the two: neither is freed before the other, so that no id is reused
READ = ("item", "tolist", "numpy", "__float__", "__int__", "__bool__", "__array__", "__format__", "__index__")
_OF_HASHES = "torch._tensor"  # the module in which the hash of a tensor is its id


def now(tensor: Any) -> Any:
    """Return the sharded weight that replaced a whole weight; return other tensors unchanged."""
    found = _now.get(tensor)
    weight = found() if found is not None else None
    return tensor if weight is None else weight


def is_replaced(tensor: Any) -> bool:
    """Return whether a tensor is a whole weight that was replaced by a sharded one."""
    return _now.get(tensor) is not None


def replace(torch: Any, whole: Any, weight: Any) -> None:
    """Make a whole weight a follower of the sharded weight that has replaced it in the model, and free its memory.

    Args:
        torch: The torch module.
        whole: The whole weight; its class changes.
        weight: The sharded weight. It gets the attributes that the program has set on the whole weight.
    """
    _now.set(whole, weakref.ref(weight))
    _numbers.set(weight, id(whole))
    _numbers.drop_with(weight)
    vars(weight).update(vars(whole))
    setattr(weight, _LINK, whole)
    setattr(whole, _LINK, weight)
    if whole.numel() and whole._use_count() == 1:  # otherwise a graph may need the values
        whole.data = whole.detach().new_zeros(1).expand(whole.shape)
    whole.__class__ = _kind(torch)


def attributes_of(weight: Any) -> dict[str, Any]:
    """Return the attributes that the program has set on a sharded weight, or on the whole weight before it."""
    return {name: value for name, value in vars(weight).items() if name not in (_LINK, "_is_param")}


def current(values: Any) -> Any:
    """Return values with each whole weight replaced by its sharded weight."""
    import torch

    return torch.utils._pytree.tree_map(now, values)


def is_lookup(name: str, args: Any) -> bool:
    """Return whether an operator compares a whole weight with its sharded weight, as a lookup of a key does.

    Args:
        name: The name of the operator.
        args: Its positional arguments.
    """
    if name not in ("__eq__", "eq") or len(args) != 2 or args[0] is args[1]:
        return False
    return now(args[0]) is now(args[1])


@functools.cache
def _kind(torch: Any) -> Any:
    class Follower(torch.nn.Parameter):
        @classmethod
        def __torch_function__(cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(function, "__name__", "")
            if is_lookup(name, args):
                return True
            args, kwargs = current((args, kwargs or {}))
            return getattr(args[0], name)(*args[1:], **kwargs) if name in READ else function(*args, **kwargs)

        def __deepcopy__(self, memo: Any) -> Any:
            return copy.deepcopy(now(self), memo)

        def __reduce_ex__(self, protocol: Any) -> Any:
            return now(self).__reduce_ex__(protocol)

    return Follower


def patch() -> None:
    """Patch `id`, from which Python also computes the hash of a tensor. torch's own modules get the true numbers."""
    original = builtins.id

    def identity(value: Any, /) -> int:
        found = original(value)
        entry = _numbers.entries.get(found)
        if entry is None or entry[0]() is not value:
            return found
        caller = str(sys._getframe(1).f_globals.get("__name__", ""))
        is_internal = caller.startswith(("torch.", "paceline.")) and caller != _OF_HASHES
        return found if is_internal else entry[1]

    hooks.install(builtins, "id", functools.wraps(original)(identity))
