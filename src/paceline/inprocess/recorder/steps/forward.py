"""Record forward passes: hooks in the source of ``nn.Module.__call__``, for the outermost call.

A call of an inner module costs one more attribute load. Modules without parameters (losses, transforms) are not
recorded.
"""

from __future__ import annotations

import sys
import weakref
from _thread import get_ident
from collections.abc import Callable
from time import perf_counter_ns, thread_time_ns
from typing import Any

from paceline.inprocess import hooks
from paceline.inprocess.identity import IdentityMap
from paceline.inprocess.recorder.frames import stack
from paceline.inprocess.recorder.probe_state import FORWARD, gate
from paceline.inprocess.recorder.source_instrumentation import NoSourceError, woven
from paceline.inprocess.recorder.steps import gradient_exchange
from paceline.inprocess.recorder.tensors import Reader
from paceline.inprocess.wrappers import stand_in


class _Known:
    """Properties of a module, determined at its first outermost call."""

    __slots__ = ("class_name", "has_parameters", "reduces", "shards")

    def __init__(self, module: Any) -> None:
        self.has_parameters = next(module.parameters(), None) is not None
        self.reduces = hasattr(module, "require_backward_grad_sync")  # DistributedDataParallel
        self.shards = gate.distributed and any(_is_sharded(type(one)) for one in module.modules())
        inner = module._modules.get("module") if self.reduces else None
        self.class_name = type(module if inner is None else inner).__name__


def _is_sharded(kind: type) -> bool:
    """Return whether modules of a class are sharded by FSDP2 or FSDP1."""
    return any(base.__name__ in ("FSDPModule", "FullyShardedDataParallel") for base in kind.__mro__)


_known: IdentityMap[_Known] = IdentityMap()
_last_input: Any = None


def known(module: Any) -> _Known:
    """Return the properties of a module; they are determined once per object."""
    return _known.get(module) or _known.set(module, _Known(module))


def class_name(module_id: int) -> str | None:
    """Return the class name of a called module, or for DDP of the module inside it; None if the module was freed."""
    entry = _known.entries.get(module_id)
    return None if entry is None else entry[1].class_name


def any_sharded() -> bool:
    """Return whether any called module is sharded over ranks."""
    return any(found.shards for _, found in list(_known.entries.values()))


def wanted_stack() -> Any:
    """Return the stack of the caller's caller for the first few calls of a run, then None."""
    if gate.frames_wanted <= 0:
        return None
    gate.frames_wanted -= 1
    return stack(sys._getframe(2))


def patch(torch: Any) -> None:
    """Insert the hooks into ``Module.__call__``."""
    original, begin = torch.nn.Module.__call__, _beginning(torch)
    try:
        marked = woven(original, ("self", "args", "kwargs"), begin, _end, torch.compiler.is_compiling)
    except NoSourceError:
        marked = _wrapped(original, begin)
    hooks.replace(torch.nn.Module, "__call__", marked)


def _wrapped(original: Any, begin: Any) -> Any:
    """Return `original` wrapped with the hooks, for torch without source files."""

    def outermost(args: Any, kwargs: Any) -> int | None:
        return None if gate.nested else begin(args[0], args[1:], kwargs)

    return stand_in(original, "forward probe", outermost, lambda begun, result, raised: _end(begun, result))


def _beginning(torch: Any) -> Callable[[Any, Any, Any], int | None]:
    """Return the hook before an outermost call, which records the event and returns the thread's CPU time (or 0)."""
    reader = Reader(torch)
    grad_enabled, entries = torch.is_grad_enabled, _known.entries

    def look(args: Any, kwargs: Any) -> tuple[float | None, bool]:
        """Return the batch size of the input, and whether the first tensor of the input is a new one."""
        global _last_input
        first = reader.first(args)
        if first is None:
            first = reader.first(kwargs.values())
        before = _last_input() if _last_input is not None else None
        _last_input = weakref.ref(first) if first is not None else None
        return reader.leading_dimension(first), first is None or first is not before

    def begin(module: Any, args: Any, kwargs: Any) -> int | None:
        if get_ident() != gate.owner:
            return None
        try:
            entry = entries.get(id(module))
            found = entry[1] if entry is not None and entry[0]() is module else known(module)
            if not found.has_parameters:
                return None
            samples, fresh = (None, True) if gate.fed else look(args, kwargs)
            reduces = found.reduces
            synced = reduces and module.require_backward_grad_sync
            if reduces:
                gradient_exchange.look(module)
            frames = wanted_stack() if gate.frames_wanted else None
            if not gate.scribe_started:
                gate.start_scribe()
            graded = grad_enabled()
            if graded and gate.unseen_updates is not None:
                gate.unseen_updates.look()
            detail = (graded, module.training, id(module), samples, fresh, synced, frames)
            gate.put((perf_counter_ns(), FORWARD, detail))
            gate.nested = True
            return thread_time_ns() if reduces else 0
        except Exception as error:
            gate.nested = False
            hooks.fault(error, "forward probe")
            return None

    return begin


def _end(begun_cpu: int, _: Any) -> None:
    gate.nested = False
    try:
        gate.put((perf_counter_ns(), FORWARD + 1, thread_time_ns() - begun_cpu if begun_cpu else None))
    except Exception as error:
        hooks.fault(error, "forward probe")
