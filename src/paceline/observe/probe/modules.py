"""When does a model run forward? A stand-in for ``nn.Module.__call__`` that marks the outermost call.

Inner modules pay one attribute load more than before: the stand-in repeats the two lines of
``Module._wrapped_call_impl`` instead of calling through it. Modules without parameters (losses,
transforms) are not marked.
"""

from __future__ import annotations

import sys
import weakref
from _thread import get_ident
from time import perf_counter_ns, thread_time_ns
from types import FrameType
from typing import Any

from paceline.observe.probe import guard
from paceline.observe.probe.automaton import Forward
from paceline.observe.probe.gate import FORWARD, gate
from paceline.observe.probe.identity import IdentityMap

_FRAMES_DEEP = 24


class _Known:
    """What was found out about a module at its first outermost call."""

    __slots__ = ("has_parameters", "reduces")

    def __init__(self, module: Any) -> None:
        self.has_parameters = next(module.parameters(), None) is not None
        self.reduces = hasattr(module, "require_backward_grad_sync")  # DistributedDataParallel


_known: IdentityMap[_Known] = IdentityMap()
_last_input: Any = None


def known(module: Any) -> _Known:
    """Return what is known of a module, looked up once per object."""
    return _known.get(module) or _known.set(module, _Known(module))


def first_tensor(values: Any, tensor_type: type) -> Any:
    """Return the first tensor in arguments: itself, in a sequence or mapping, at most two deep; else None."""
    for value in values:
        if isinstance(value, tensor_type):
            return value
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        for item in inner:
            if isinstance(item, tensor_type):
                return item
    return None


def stack(frame: FrameType | None) -> list[tuple[Any, int]]:
    """Return the calling stack as (code object, line), innermost first."""
    found: list[tuple[Any, int]] = []
    while frame is not None and len(found) < _FRAMES_DEEP:
        found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return found


def wanted_stack() -> Any:
    """Return the caller's caller's stack for the first few calls of a run, then None."""
    if gate.frames_wanted <= 0:
        return None
    gate.frames_wanted -= 1
    return stack(sys._getframe(3))


def leading_dimension(tensor: Any) -> float | None:
    """Return the batch size that a tensor speaks of, or None for a scalar or no tensor."""
    if tensor is None or not tensor.dim():
        return None
    return float(tensor.shape[0])


def patch(torch: Any) -> None:
    """Put the stand-in in place."""
    module_class = torch.nn.Module
    original = module_class.__call__
    tensor_type = torch.Tensor
    grad_enabled = torch.is_grad_enabled

    def begin(module: Any, args: Any, kwargs: Any) -> _Known | None:
        global _last_input
        found = known(module)
        if not found.has_parameters:
            return None
        first = first_tensor(args, tensor_type)
        if first is None:
            first = first_tensor(kwargs.values(), tensor_type)
        before = _last_input() if _last_input is not None else None
        _last_input = weakref.ref(first) if first is not None else None
        detail = Forward(
            grad_enabled(),
            module.training,
            id(module),
            leading_dimension(first),
            first is None or first is not before,
            found.reduces and module.require_backward_grad_sync,
            wanted_stack(),
        )
        if not gate.scribe_started:
            gate.start_scribe()
        gate.put((perf_counter_ns(), FORWARD, detail))
        return found

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807  stands in for Module.__call__
        if gate.nested or get_ident() != gate.owner:
            if self._compiled_call_impl is not None:
                return self._compiled_call_impl(*args, **kwargs)
            return self._call_impl(*args, **kwargs)
        try:
            found = begin(self, args, kwargs)
        except Exception as error:
            found = None
            guard.fault(error, "forward probe")
        if found is None:
            return original(self, *args, **kwargs)
        cpu = thread_time_ns() if found.reduces else None
        gate.nested = True
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
            raise
        finally:
            gate.nested = False
            now = perf_counter_ns()
            gate.put((now, FORWARD + 1, None if cpu is None else thread_time_ns() - cpu))

    guard.replace(module_class, "__call__", __call__)
