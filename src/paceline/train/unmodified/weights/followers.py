"""Followers: weights from before their model was sharded, each of which acts as the sharded weight in its place.

FSDP2 replaces each original weight of a model by a sharded weight, which is another object. The program may still use
the original one: from a list, as a key of a dictionary, as a member of a set, by its `id`, or by an attribute that it
has set. The original weight therefore becomes a *follower* of the sharded weight. Operations on the follower are done
on the sharded weight. Both have the same hash, compare equal, and `id` returns the same number for both.
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

READ = ("item", "tolist", "numpy", "__float__", "__int__", "__bool__", "__array__", "__format__", "__index__")
_sharded_weights: IdentityMap[weakref.ref[Any]] = IdentityMap()  # follower -> its sharded weight
_ids: IdentityMap[int] = IdentityMap()  # sharded weight -> id of its follower
_OTHER = "_paceline_other"  # attribute with which a follower and its sharded weight refer to each other
_OF_HASHES = "torch._tensor"  # the module that computes the hash of a tensor from its id


def make_follower(torch: Any, original: Any, weight: Any) -> None:
    """Make an original weight a follower of a sharded weight, and free its memory.

    Neither of the two is freed before the other, so no other object gets the id of the follower.

    Args:
        torch: The torch module.
        original: The original weight; its class changes.
        weight: The sharded weight that has replaced it. It gets the attributes that the program has set.
    """
    _sharded_weights.set(original, weakref.ref(weight))
    _ids.set(weight, id(original))
    _ids.drop_with(weight)
    vars(weight).update(vars(original))
    setattr(weight, _OTHER, original)
    setattr(original, _OTHER, weight)
    if original.numel() and original._use_count() == 1:  # otherwise, a backward pass may need the values
        original.data = original.detach().new_zeros(1).expand(original.shape)
    original.__class__ = _follower_class(torch)


def is_follower(tensor: Any) -> bool:
    """Return whether a tensor is a follower of a sharded weight."""
    return _sharded_weights.get(tensor) is not None


def sharded_weight(tensor: Any) -> Any:
    """Return the sharded weight of a follower. Return any other value unchanged."""
    found = _sharded_weights.get(tensor)
    weight = found() if found is not None else None
    return tensor if weight is None else weight


def replace_followers(values: Any) -> Any:
    """Return nested values in which each follower is replaced by its sharded weight."""
    import torch

    return torch.utils._pytree.tree_map(sharded_weight, values)


def attributes_of(weight: Any) -> dict[str, Any]:
    """Return the attributes that the program has set on a sharded weight or on its follower."""
    return {name: value for name, value in vars(weight).items() if name not in (_OTHER, "_is_param")}


def is_lookup(name: str, args: Any) -> bool:
    """Return whether a call compares a follower with its sharded weight, as Python does to find a key or a member.

    Args:
        name: The name of the called operator.
        args: Its positional arguments.
    """
    if name not in ("__eq__", "eq") or len(args) != 2 or args[0] is args[1]:
        return False
    return sharded_weight(args[0]) is sharded_weight(args[1])


@functools.cache
def _follower_class(torch: Any) -> Any:
    class Follower(torch.nn.Parameter):
        @classmethod
        def __torch_function__(cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(function, "__name__", "")
            if is_lookup(name, args):
                return True
            args, kwargs = replace_followers((args, kwargs or {}))
            return getattr(args[0], name)(*args[1:], **kwargs) if name in READ else function(*args, **kwargs)

        def __deepcopy__(self, memo: Any) -> Any:
            return copy.deepcopy(sharded_weight(self), memo)

        def __reduce_ex__(self, protocol: Any) -> Any:
            return sharded_weight(self).__reduce_ex__(protocol)

    return Follower


def patch() -> None:
    """Patch `id` so that it returns the same number for a sharded weight and its follower.

    The hash of a tensor is computed with `id` too. Other calls by torch and Paceline get the unpatched result.
    """
    original = builtins.id

    def patched_id(value: Any, /) -> int:
        found = original(value)
        entry = _ids.entries.get(found)
        if entry is None or entry[0]() is not value:
            return found
        caller = str(sys._getframe(1).f_globals.get("__name__", ""))
        is_internal = caller.startswith(("torch.", "paceline.")) and caller != _OF_HASHES
        return found if is_internal else entry[1]

    hooks.install(builtins, "id", functools.wraps(original)(patched_id))
