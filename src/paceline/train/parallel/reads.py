"""Numbers that a program reads from parameters and gradients that are split over ranks.

torch's `item()` of a split tensor reads what this rank has: the norm of a gradient is then that of a part. Within a
step of the optimizer, which all ranks make, the whole value is read. Elsewhere a `UsageError` names the way out,
because a rank that alone reads a whole value would wait for the others.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from paceline.core.errors import UsageError
from paceline.inprocess import hooks

_READ = ("item", "tolist", "numpy", "__float__", "__int__", "__bool__", "__index__", "__array__", "__format__")
_steps: list[None] = []  # an entry for each step of an optimizer that is running


@contextmanager
def in_step() -> Iterator[None]:
    """Return a context that all ranks enter together, in which the whole value of a split tensor is read."""
    _steps.append(None)
    try:
        yield
    finally:
        _steps.pop()


def patch() -> None:
    """Patch the methods of DTensor that read numbers, and ``clip_grad_norm_`` for split and whole gradients mixed."""
    from torch.distributed.tensor import DTensor

    if f"{DTensor.__module__}.{DTensor.__qualname__}.item" in hooks.installed():
        return
    for name in _READ:
        hooks.replace(DTensor, name, _reader(DTensor, name))
    _patch_norms(DTensor)


def _reader(kind: Any, name: str) -> Any:
    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(_whole(self, name), name)(*args, **kwargs)

    return read


def _whole(value: Any, name: str) -> Any:
    """Return a split tensor as a plain tensor.

    Raises:
        UsageError: Each rank has another part of the value, and no optimizer makes a step.
    """
    if all(place.is_replicate() for place in value.placements):
        return value.detach()._local_tensor
    if not _steps:
        what = "float()" if name == "__float__" else f"{name.strip('_')}()"
        raise UsageError(
            f"{what} would read this rank's part of a value computed from parameters or gradients that are split over "
            "ranks, such as a norm; call full_tensor() first, on all ranks: gradient.norm().full_tensor().item(). To "
            "clip gradients, set optimizer.clip_norm"
        )
    return value.detach().full_tensor()


def _patch_norms(kind: Any) -> None:
    from torch.distributed.tensor import Replicate
    from torch.nn.utils import clip_grad

    norm = getattr(clip_grad, "_get_total_norm", None)
    if norm is None:
        return

    def checked(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        given = list(tensors) if not hasattr(tensors, "grad_fn") else [tensors]
        if len({isinstance(one, kind) for one in given}) > 1:
            raise UsageError(
                "clip_grad_norm_() cannot combine gradients that are split over ranks with whole ones; set "
                "optimizer.clip_norm (--clip-norm), which the engine applies to the whole model"
            )
        found = norm(given, *args, **kwargs)
        if isinstance(found, kind):  # all ranks clip, and the program may read the norm
            return found.redistribute(found.device_mesh, [Replicate()] * found.device_mesh.ndim)
        return found

    hooks.replace(clip_grad, "_get_total_norm", checked)


def refuse_norms_of_stages(model: Any) -> None:
    """Patch `torch.nn.utils.clip_grad_norm_` to raise a `UsageError` for parameters of this rank's layers.

    Each rank would clip by the norm of its own layers instead of the norm of the whole model.

    Args:
        model: The module that holds the parameters of this rank.
    """
    from torch.nn.utils import clip_grad

    norm = getattr(clip_grad, "_get_total_norm", None)
    if norm is None:
        return
    held = weakref.ref(model)

    def checked(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        given, own = list(tensors) if not hasattr(tensors, "grad_fn") else [tensors], held()
        of_stages = {id(parameter.grad) for parameter in own.parameters()} if own is not None else set()
        if any(id(one) in of_stages for one in given):
            raise UsageError(
                "clip_grad_norm_() sees the gradients of this rank's layers only, and with pp ranks have different "
                "layers; set optimizer.clip_norm (--clip-norm), which the engine applies to the whole model"
            )
        return norm(given, *args, **kwargs)

    hooks.replace(clip_grad, "_get_total_norm", checked)
