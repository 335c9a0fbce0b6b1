"""[optimizer]: fused or foreach kernels unless the program chooses, 8-bit state, and the learning rate."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from paceline.inprocess import hooks
from paceline.inprocess.other_threads import objects_of
from paceline.inprocess.settings import confirmation, lr_factor, state_8bit


def patch(torch: Any, settings: Mapping[str, Any]) -> None:
    """Apply the [optimizer] settings of a recipe to every torch optimizer that supports them."""
    if "lr_factor" in settings:
        lr_factor.patch(torch, settings["lr_factor"])
    if settings.get("state_8bit"):
        state_8bit.patch(torch)
    for kind in vars(torch.optim).values():
        if not isinstance(kind, type) or not issubclass(kind, torch.optim.Optimizer):
            continue
        for key in ("fused", "foreach"):
            if settings.get(key) and key in inspect.signature(kind).parameters:
                _patch_init(torch, kind, key)


def _patch_init(torch: Any, kind: Any, key: str) -> None:
    original = kind.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind_partial(self, *args, **kwargs).arguments
        given = given | given.get("kwargs", {})
        chosen = [name for name in ("fused", "foreach") if given.get(name) is not None]
        if type(self) is not kind or chosen:
            if type(self) is kind or not type(self).__module__.startswith("torch.optim."):  # torch's AdamW is an Adam
                confirmation.refused(
                    f"optimizer.{key}", f"the program passed {type(self).__name__} {chosen or 'a class of its own'}"
                )
            original(self, *args, **kwargs)
            return
        args, kwargs = _listed(args, kwargs)
        reason = _refusal(torch, key, args[0] if args else kwargs.get("params"), given) or _failure(
            lambda: original(self, *args, **{**kwargs, key: True})
        )
        if reason is None:
            confirmation.took(f"optimizer.{key}", f"{kind.__name__}({key}=True)")
            return
        confirmation.refused(f"optimizer.{key}", f"{kind.__name__}: {reason}")
        original(self, *args, **kwargs)

    hooks.install(kind, "__init__", __init__)


def _listed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Replace iterators over parameters in the arguments by lists, because iterators can be read only once."""
    params = args[0] if args else kwargs.get("params")
    if params is None or hasattr(params, "data_ptr"):
        return args, kwargs
    params = list(params) if isinstance(params, Iterator) else params
    for group in params:
        if isinstance(group, dict) and isinstance(group.get("params"), Iterator):
            group["params"] = list(group["params"])  # in place, as torch does
    return ((params, *args[1:]), kwargs) if args else (args, {**kwargs, "params": params})


def _failure(make: Callable[[], None]) -> str | None:
    """Create an optimizer; return torch's error message about its arguments, or None."""
    try:
        make()
    except (RuntimeError, ValueError) as error:
        return str(error)
    return None


def _refusal(torch: Any, key: str, params: Any, given: Mapping[str, Any]) -> str | None:
    """Return why torch would refuse a setting at the first step, or None if no reason is known."""
    if given.get("differentiable"):
        return f"{key} does not support differentiable=True"
    tensors = []
    for one in params if isinstance(params, Iterable) and not hasattr(params, "data_ptr") else ():
        if isinstance(one, dict) and {"fused", "foreach", "differentiable"} & one.keys():
            return "the program makes this choice for a group of parameters itself"
        tensors += _tensors(one)
    if any(type(one) not in (torch.Tensor, torch.nn.Parameter) for one in tensors):
        return "a parameter is a tensor of another class, such as a shard of one"
    if key != "fused":
        return None
    if not all(one.is_floating_point() for one in tensors):
        return "a parameter is not of a floating-point type"
    return _sparse(torch, tensors)


def _tensors(one: Any) -> list[Any]:
    """Return the tensors of one element of an optimizer's `params`: a tensor, a (name, tensor) pair, or a group."""
    if isinstance(one, dict):
        params = one.get("params", ())
        return [params] if hasattr(params, "data_ptr") else [t for member in params for t in _tensors(member)]
    return [one[1]] if isinstance(one, tuple) and len(one) == 2 else [one] if hasattr(one, "data_ptr") else []


def _sparse(torch: Any, tensors: list[Any]) -> str | None:
    """Return why fused kernels refuse the gradients of a sparse embedding, or None if no tensor belongs to one."""
    trained = {id(one) for one in tensors}
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    for module in [each for kind in kinds for each in objects_of(kind)]:
        if module.sparse and id(module.weight) in trained:
            return f"{type(module).__name__}(sparse=True) makes sparse gradients, which fused kernels do not support"
    return None
