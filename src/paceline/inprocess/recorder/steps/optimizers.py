"""Record parameter updates, with torch's global hooks around ``Optimizer.step`` and two small patches."""

from __future__ import annotations

import functools
import inspect
import sys
from _thread import get_ident
from time import perf_counter_ns
from types import CodeType, FunctionType
from typing import Any

from paceline.inprocess import hooks
from paceline.inprocess.recorder.probe_state import MADE_OPTIMIZER, OPTIMIZER, TIDY, gate
from paceline.inprocess.recorder.steps.updates import UnseenUpdates
from paceline.inprocess.wrappers import stand_in, step_out

described: dict[int, dict[str, Any]] = {}
own_code: set[CodeType] = set()  # all code of optimizer classes outside torch, such as SAM's `first_step`


def patch(torch: Any) -> None:
    """Hook the steps of all existing and future optimizers."""
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    compiling = torch.compiler.is_dynamo_compiling

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not compiling() and get_ident() == gate.owner:
            gate.put((perf_counter_ns(), OPTIMIZER, id(optimizer)))

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not compiling() and get_ident() == gate.owner:
            gate.put((perf_counter_ns(), OPTIMIZER + 1, id(optimizer)))
            gate.optimizer_steps += 1
            if gate.unseen_updates is not None:
                gate.unseen_updates.stepped()
            if gate.window is not None:
                gate.window(id(optimizer))

    # The hooks are never removed: a thread may be iterating over torch's hooks. After a fault they do nothing.
    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)
    gate.unseen_updates = UnseenUpdates(torch)
    _patch_init(torch)
    _patch_zero_grad(torch.optim.Optimizer)
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        _patch_tidy(torch.nn.utils.clip_grad, name)
        if name in vars(torch.nn.utils):
            hooks.replace(torch.nn.utils, name, getattr(torch.nn.utils.clip_grad, name))


def _patch_init(torch: Any) -> None:
    def end(optimizer: Any, result: Any, raised: BaseException | None) -> None:
        if raised is None:
            described[id(optimizer)] = describe(optimizer)
            own_code.update(code_of(type(optimizer)))
            gate.put((perf_counter_ns(), MADE_OPTIMIZER))
            if gate.unseen_updates is not None:
                gate.unseen_updates.add(optimizer)

    base = torch.optim.Optimizer
    begin = lambda args, kwargs: args[0] if args else kwargs.get("self")  # noqa: E731
    hooks.replace(base, "__init__", stand_in(base.__init__, "optimizer probe", begin, end))


def code_of(optimizer: type) -> set[CodeType]:
    """Return the code of an optimizer's methods, from its classes that are not part of torch."""
    own = [kind for kind in optimizer.__mro__ if kind is not object and not kind.__module__.startswith("torch.")]
    methods = [inspect.unwrap(one) for kind in own for one in vars(kind).values() if isinstance(one, FunctionType)]
    return {one.__code__ for one in methods}


def describe(optimizer: Any) -> dict[str, Any]:
    """Describe an optimizer for the report: class, implementation, numbers of tensors and of parameters."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return {
        "class": type(optimizer).__name__,
        "of_torch": not code_of(type(optimizer)),
        "foreach": optimizer.defaults.get("foreach"),
        "fused": optimizer.defaults.get("fused"),
        "tensors": len(parameters),
        "parameters": sum(p.numel() for p in parameters if not hasattr(p, "cls_to_become")),  # lazy: no size yet
        "device": parameters[0].device.type if parameters else None,
        "dtype": str(parameters[0].dtype).removeprefix("torch.") if parameters else None,
    }


def _patch_zero_grad(optimizer: Any) -> None:
    """Hook ``zero_grad`` of an optimizer in the cheapest way, because every step calls ``zero_grad``."""
    original, compiling = optimizer.zero_grad, sys.modules["torch"].compiler.is_dynamo_compiling

    @functools.wraps(original)
    def zero_grad(*args: Any, **kwargs: Any) -> Any:
        if compiling():
            return original(*args, **kwargs)
        outermost = not gate.nested and get_ident() == gate.owner
        try:
            if outermost:
                gate.put((perf_counter_ns(), TIDY))
        except Exception as error:
            hooks.fault(error, "optimizer probe")
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            step_out(error)
            raise
        finally:
            try:
                if outermost:
                    gate.put((perf_counter_ns(), TIDY + 1))
            except Exception as error:
                hooks.fault(error, "optimizer probe")

    hooks.replace(optimizer, "zero_grad", zero_grad)


def _patch_tidy(owner: Any, name: str) -> None:
    def begin(args: Any, kwargs: Any) -> bool | None:
        if gate.nested or get_ident() != gate.owner:
            return None
        gate.put((perf_counter_ns(), TIDY))
        return True

    def end(begun: bool, result: Any, raised: BaseException | None) -> None:
        gate.put((perf_counter_ns(), TIDY + 1))

    hooks.replace(owner, name, stand_in(getattr(owner, name), "optimizer probe", begin, end))
