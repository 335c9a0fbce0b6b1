"""Which plain functions are phases of their own? Collectives, saving, copies to the device: one table, one wrapper."""

from __future__ import annotations

import functools
from _thread import get_ident
from time import perf_counter_ns
from typing import Any

from paceline.observe.probe import guard
from paceline.observe.probe.gate import COMMUNICATION, SAVE, TRANSFER, gate

COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "monitored_barrier",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
)

# Modules that may be imported later, and the functions in them that save a checkpoint.
SAVERS = {
    "torch.distributed.checkpoint": ("save", "async_save"),
    "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save"),
    "safetensors.torch": ("save_file", "save_model"),
}


def mark(owner: Any, name: str, code: int) -> None:
    """Wrap ``owner.name`` so that its outermost calls are a phase."""
    original = getattr(owner, name, None)
    if original is None or getattr(original, "_paceline_mark", None):
        return

    @functools.wraps(original)
    def marked(*args: Any, **kwargs: Any) -> Any:
        if marked.busy or get_ident() != gate.owner:  # type: ignore[attr-defined]
            return original(*args, **kwargs)
        marked.busy = True  # type: ignore[attr-defined]
        gate.put((perf_counter_ns(), code))
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
            raise
        finally:
            gate.put((perf_counter_ns(), code + 1))
            marked.busy = False  # type: ignore[attr-defined]

    marked.busy = False  # type: ignore[attr-defined]
    marked._paceline_mark = True  # type: ignore[attr-defined]
    guard.replace(owner, name, marked)


def patch(torch: Any) -> None:
    """Mark what torch itself offers."""
    mark(torch, "save", SAVE)
    if torch.distributed.is_available():
        _patch_collectives(torch)
    if torch.cuda.is_available():
        for name in ("to", "cuda"):
            _mark_copies(torch, name)


def patch_savers(module: Any) -> None:
    """Mark the savers of a module that has just been imported."""
    for name in SAVERS.get(module.__name__, ()):
        mark(module, name, SAVE)


def _patch_collectives(torch: Any) -> None:
    from torch.distributed import distributed_c10d

    for name in COLLECTIVES:
        if hasattr(distributed_c10d, name):
            mark(distributed_c10d, name, COMMUNICATION)
            guard.replace(torch.distributed, name, getattr(distributed_c10d, name))
    mark(torch._C._distributed_c10d.Work, "wait", COMMUNICATION)
    for name in ("init_process_group", "destroy_process_group"):
        _note_group(torch, distributed_c10d, name)


def _note_group(torch: Any, owner: Any, name: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def noted(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        try:
            gate.distributed = torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
            if gate.distributed:
                gate.rank = (torch.distributed.get_rank(), torch.distributed.get_world_size())
        except Exception as error:
            guard.fault(error, "process-group probe")
        return result

    guard.replace(owner, name, noted)
    guard.replace(torch.distributed, name, noted)


def _mark_copies(torch: Any, name: str) -> None:
    """Mark copies from the host to a GPU; calls that stay on one device are left alone."""
    original = getattr(torch.Tensor, name)
    parameter = torch.nn.Parameter

    @functools.wraps(original)
    def copied(self: Any, *args: Any, **kwargs: Any) -> Any:
        if gate.nested or self.is_cuda or isinstance(self, parameter) or get_ident() != gate.owner:
            return original(self, *args, **kwargs)
        gate.put((perf_counter_ns(), TRANSFER))
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
            raise
        finally:
            gate.put((perf_counter_ns(), TRANSFER + 1))

    guard.replace(torch.Tensor, name, copied)
