"""When are parameters updated? Torch's own global hooks around ``Optimizer.step``, and two small patches."""

from __future__ import annotations

import functools
from _thread import get_ident
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from paceline.observe.probe import guard
from paceline.observe.probe.gate import MADE_OPTIMIZER, OPTIMIZER, TIDY, gate

described: dict[int, dict[str, Any]] = {}


def patch(torch: Any) -> None:
    """Hook every optimizer that exists or will."""
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    compiling = torch.compiler.is_compiling

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not compiling() and get_ident() == gate.owner:
            gate.put((perf_counter_ns(), OPTIMIZER, id(optimizer)))

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not compiling() and get_ident() == gate.owner:
            gate.put((perf_counter_ns(), OPTIMIZER + 1, id(optimizer)))
            if gate.window is not None:
                gate.window()

    guard.on_undo(register_optimizer_step_pre_hook(before).remove)
    guard.on_undo(register_optimizer_step_post_hook(after).remove)
    _patch_init(torch)
    _patch_tidy(torch.optim.Optimizer, "zero_grad", compiling)
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        _patch_tidy(torch.nn.utils.clip_grad, name, compiling)
        if name in vars(torch.nn.utils):
            guard.replace(torch.nn.utils, name, getattr(torch.nn.utils.clip_grad, name))


def _patch_init(torch: Any) -> None:
    original = torch.optim.Optimizer.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        try:
            described[id(self)] = describe(self)
            gate.put((perf_counter_ns(), MADE_OPTIMIZER))
        except Exception as error:
            guard.fault(error, "optimizer probe")

    guard.replace(torch.optim.Optimizer, "__init__", __init__)


def describe(optimizer: Any) -> dict[str, Any]:
    """Return what a report says of an optimizer: class, implementation, tensors and numbers of parameters."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return {
        "class": type(optimizer).__name__,
        "foreach": optimizer.defaults.get("foreach"),
        "fused": optimizer.defaults.get("fused"),
        "tensors": len(parameters),
        "parameters": sum(p.numel() for p in parameters),
        "device": parameters[0].device.type if parameters else None,
        "dtype": str(parameters[0].dtype).removeprefix("torch.") if parameters else None,
    }


def _patch_tidy(owner: Any, name: str, compiling: Callable[[], bool]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def tidy(*args: Any, **kwargs: Any) -> Any:
        if compiling() or gate.nested or get_ident() != gate.owner:
            return original(*args, **kwargs)
        gate.put((perf_counter_ns(), TIDY))
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
            raise
        finally:
            gate.put((perf_counter_ns(), TIDY + 1))

    guard.replace(owner, name, tidy)
