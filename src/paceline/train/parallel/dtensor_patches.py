"""Patches and checks of split tensors (torch's DTensor), where torch would silently compute something else.

- **Numbers.** Without the patches, `gradient.norm().item()` returns the norm of the part of the gradient that this rank
  holds. During `optimizer.step()`, which all ranks call, the patched methods gather the tensor and return the number of
  the whole tensor. Outside `optimizer.step()`, a single rank may call them, for example to print a number; gathering
  would then wait for the other ranks forever. The patched methods raise a `UsageError` there.
- **Random numbers.** Each rank draws the numbers of the whole tensor, and keeps those of its part. Without the patch,
  each rank draws numbers for its part only. On a CPU, all parts then get the same numbers.
- **Second derivatives.** If the gradients of split parameters are differentiated again, torch leaves terms out. The
  backward pass raises a `UsageError`.

If Paceline switches itself off after an internal error, these patches stay installed, because training would be wrong
without them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from paceline.core.errors import UsageError
from paceline.core.layout import Layout
from paceline.inprocess import hooks
from paceline.train.ranks import random_states
from paceline.train.ranks.agreement import digest, is_same

_READ = ("item", "tolist", "numpy", "__float__", "__int__", "__bool__", "__index__", "__array__", "__format__")
_NO_STRATEGY = "does not have a sharding strategy registered"  # a part of torch's error message
_MIXED = "mixed torch.Tensor and DTensor"  # a part of torch's error message
_TWICE = "Expected to mark a variable ready only once"  # a part of torch's error message
_NOT_COPIED = "cannot pickle 'torch._C._distributed_c10d.ProcessGroup'"
_DRAWING = (
    *("uniform_", "normal_", "bernoulli_", "random_", "exponential_", "log_normal_", "cauchy_", "geometric_"),
    *("rand_like", "randn_like", "randint_like", "bernoulli"),
)
_running_steps: list[None] = []  # an entry for each running call of `optimizer.step()`
_CLIP = "set optimizer.clip_norm (--clip-norm), which the engine applies to the whole model"


@contextmanager
def during_optimizer_step() -> Iterator[None]:
    """Return a context in which the patched methods gather split tensors. All ranks must enter the context."""
    _running_steps.append(None)
    try:
        yield
    finally:
        _running_steps.pop()


def in_optimizer_step() -> bool:
    """Return whether a call of `optimizer.step()` is running, whose errors name the optimizer."""
    return bool(_running_steps)


@contextmanager
def explain_mixed_tensors(layout: Layout) -> Iterator[None]:
    """Replace torch's error about a split parameter and a whole tensor by one that names a remedy.

    Raises:
        UsageError: An operation inside the context got a split parameter and a whole tensor.
    """
    try:
        yield
    except RuntimeError as error:
        explained = explain(error, layout)
        if explained is None:
            raise
        raise explained from error


def explain(error: BaseException | None, layout: Layout) -> UsageError | None:
    """Return an error with a way out for an error of torch about parameters on several ranks; None for other errors."""
    if _MIXED in str(error):
        return UsageError(
            f"{layout}: the program computes with a parameter that is split over ranks and with a whole tensor (torch: "
            "got mixed torch.Tensor and DTensor), as in a penalty on the weights, an average of the weights, or a part "
            "of the model that is called outside of the forward pass of the model, such as model.head(x). Call such a "
            "part in forward(), use weight_decay of the optimizer for a penalty on all weights, ema.decay (--ema) for "
            "an average, parameter.full_tensor() to read a whole parameter, or the layout dp"
        )
    if _TWICE in str(error):
        return UsageError(
            f"{layout}: two backward() calls follow one forward pass, but with dp and cp, gradients are averaged in "
            "the first one. Add the losses, and call engine.backward() once, or use shard in place of dp"
        )
    if _NOT_COPIED in str(error):
        return UsageError(
            f"{layout}: a part of a model whose parameters are split over ranks cannot be copied. Copy it before "
            "setup(), use ema.decay (--ema) for an average of the parameters, or use dp in place of shard and tp"
        )
    if _NO_STRATEGY in str(error):
        return UsageError(
            f"{layout}: torch cannot apply an operator to a tensor that is split over ranks ({str(error).strip()}). "
            "Use another operator, or the layout dp"
        )
    return None


def patch() -> None:
    """Patch the methods of DTensor that return Python numbers, and `torch.nn.utils.clip_grad_norm_`."""
    from torch.distributed.tensor import DTensor

    if f"{DTensor.__module__}.{DTensor.__qualname__}.item" in hooks.installed():
        return
    for name in _READ:
        hooks.install(DTensor, name, _reader(name))
    _refuse_mixed_norms(DTensor)
    _clip_one_by_one(DTensor)
    handlers = DTensor._op_dispatcher._custom_op_handlers
    handlers.update(dict.fromkeys(_drawing_operators(), _draw))


def _drawing_operators() -> list[Any]:
    """Return the operators that draw random numbers in the shape of their first argument."""
    import torch

    packets = (getattr(torch.ops.aten, name) for name in _DRAWING)
    return [getattr(packet, overload) for packet in packets for overload in packet.overloads() if "out" not in overload]


def _draw(operator: Any, args: Any, kwargs: Any) -> Any:
    """Draw the random numbers of a whole tensor on each rank, and use those of this rank's part.

    Args:
        operator: One of `_drawing_operators`.
        args: Its arguments; the first one is the split tensor.
        kwargs: Its named arguments.

    Returns:
        The split tensor, whose values an operator such as `normal_` has replaced; of others, a new split tensor.

    Raises:
        UsageError: The ranks drew different numbers.
    """
    import torch
    from torch.distributed.tensor import Replicate

    split = args[0]
    mesh, local = split.device_mesh, split._local_tensor
    name = operator.__name__.partition(".")[0]
    # The values of the first argument matter only as the probabilities of `bernoulli`.
    whole = split.detach().full_tensor() if name == "bernoulli" else local.new_empty(split.shape)
    with torch.no_grad():
        drawn = operator(whole, *args[1:], **kwargs)
    if not local.is_meta and not is_same(digest(drawn.cpu()), (mesh.get_group(axis) for axis in range(mesh.ndim))):
        raise UsageError(
            f"{name}() drew different numbers on the ranks for a parameter or gradient "
            "that is split over ranks; draw from a torch.Generator that has the same seed on all ranks, or call "
            "torch.manual_seed() with the same number before it"
        )
    spread = type(split).from_local(drawn, mesh, [Replicate()] * mesh.ndim, run_check=False)
    own = spread.redistribute(mesh, split.placements)
    if not operator._schema.is_mutable:
        return own
    with torch.no_grad():
        local.copy_(own._local_tensor)
    return split


def _reader(name: str) -> Callable[..., Any]:
    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(_plain_tensor(self, name), name)(*args, **kwargs)

    return read


def _plain_tensor(value: Any, name: str) -> Any:
    """Return a DTensor as a plain tensor with all elements.

    Raises:
        UsageError: The tensor is split, and no optimizer step is running.
    """
    if all(placement.is_replicate() for placement in value.placements):
        return value.detach()._local_tensor
    if not in_optimizer_step():
        what = "float()" if name == "__float__" else f"{name.strip('_')}()"
        raise UsageError(
            f"{what} would return the number of this rank's part, because parameters and gradients are split over the "
            "ranks; call full_tensor() first, on all ranks, such as gradient.norm().full_tensor().item(). To clip "
            "gradients, set optimizer.clip_norm"
        )
    return value.detach().full_tensor()


def _refuse_mixed_norms(kind: Any) -> None:
    """Patch `clip_grad_norm_` to refuse gradients of which only some are split, and to return the norm on all ranks."""
    from torch.distributed.tensor import Replicate

    def check(gradients: list[Any]) -> None:
        if len({isinstance(gradient, kind) for gradient in gradients}) > 1:
            raise UsageError(
                f"clip_grad_norm_() cannot combine gradients that are split over ranks with whole ones; {_CLIP}"
            )

    def replicated(norm: Any) -> Any:
        if not isinstance(norm, kind):
            return norm
        return norm.redistribute(norm.device_mesh, [Replicate()] * norm.device_mesh.ndim)

    _patch_total_norm(check, replicated)


def _clip_one_by_one(kind: Any) -> None:
    """Patch torch's gradient clipping to clip one gradient after the other if only some of them are split.

    Kernels for lists of tensors refuse lists of both kinds.
    """
    from torch.nn.utils import clip_grad

    original = getattr(clip_grad, "_has_foreach_support", None)
    if original is None:
        return

    def has_foreach_support(tensors: Any, device: Any) -> bool:
        return len({isinstance(each, kind) for each in tensors}) < 2 and original(tensors, device)

    hooks.install(clip_grad, "_has_foreach_support", has_foreach_support)


def refuse_second_derivatives(model: Any, layout: Layout) -> None:
    """Make the backward pass of a model raise an error if its gradients will be differentiated again.

    Args:
        model: A model with split parameters.
        layout: The layout of the run, for messages.
    """
    import torch
    from torch.utils import _pytree

    def check(gradient: Any) -> None:
        if torch.is_grad_enabled():
            raise UsageError(
                f"layout {layout}: a gradient is to be differentiated again (create_graph=True), such as for a "
                "gradient penalty. This is impossible with split parameters; use dp in place of shard and tp"
            )

    def after_forward(_: Any, __: Any, output: Any) -> None:
        for leaf in _pytree.tree_leaves(output):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf.register_hook(check)

    model.register_forward_hook(after_forward)


def refuse_norms_of_stages(model: Any) -> None:
    """Patch `clip_grad_norm_` to refuse the gradients of a pipeline stage: their norm is not the norm of the model.

    Args:
        model: The module that holds the parameters of this rank.
    """
    reference = weakref.ref(model)

    def check(gradients: list[Any]) -> None:
        model = reference()
        of_stage = {id(parameter.grad) for parameter in model.parameters()} if model is not None else set()
        if any(id(gradient) in of_stage for gradient in gradients):
            raise UsageError(
                "clip_grad_norm_() sees the gradients of this rank's layers only, and with pp ranks have different "
                f"layers; {_CLIP}"
            )

    _patch_total_norm(check, lambda norm: norm)


def refuse_draws_of_stages(model: Any, layout: Layout) -> None:
    """Patch torch's random functions to refuse parameters and gradients of a pipeline stage.

    A rank draws numbers for its own layers only, which are not those of one process. Draws in the passes of the model
    are allowed.

    Args:
        model: The module that holds the parameters of this rank.
        layout: The layout of the run, for messages.
    """
    import torch

    shapes = {parameter.shape for parameter in model.parameters()}
    reference = weakref.ref(model)

    def is_of_stage(tensor: Any) -> bool:
        model = reference() if tensor.shape in shapes and not random_states.in_stream() else None
        if model is None or random_states.is_apart():
            return False
        own = (each for parameter in model.parameters() for each in (parameter, parameter.grad) if each is not None)
        return _pointer(tensor) in set(map(_pointer, own))

    def refusing(draw: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(draw)
        def drawn(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(tensor, torch.Tensor) and is_of_stage(tensor):
                raise UsageError(
                    f"layout {layout}: {draw.__name__}() draws random numbers for a parameter or gradient. With pp, a "
                    "rank would draw other numbers than one process, because it has only some of the layers; draw "
                    "them before setup(), or use dp, shard or tp"
                )
            return draw(tensor, *args, **kwargs)

        return drawn

    for name in _DRAWING:
        owner = torch.Tensor if name.endswith("_") else torch
        hooks.install(owner, name, refusing(getattr(owner, name)))


def _pointer(tensor: Any) -> int:
    return int(getattr(tensor, "_local_tensor", tensor).data_ptr())


def _patch_total_norm(check: Callable[[list[Any]], None], convert: Callable[[Any], Any]) -> None:
    """Patch the function with which `clip_grad_norm_` computes the norm.

    Args:
        check: Called with the gradients; raises an error if their norm cannot be computed.
        convert: Called with the norm; returns the norm for the program.
    """
    from torch.nn.utils import clip_grad

    original = getattr(clip_grad, "_get_total_norm", None)
    if original is None:
        return

    def total_norm(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        gradients = [tensors] if hasattr(tensors, "grad_fn") else list(tensors)
        check(gradients)
        return convert(original(gradients, *args, **kwargs))

    hooks.install(clip_grad, "_get_total_norm", total_norm)
