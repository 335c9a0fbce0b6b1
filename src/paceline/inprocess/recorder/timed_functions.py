"""Record calls of plain functions as phases: collectives, saving, copies to the device. A table lists the functions."""

from __future__ import annotations

import functools
import sys
from _thread import get_ident
from time import perf_counter_ns
from typing import Any

from paceline.inprocess import hooks
from paceline.inprocess.gpu_detection import has_gpu
from paceline.inprocess.recorder.frames import stack
from paceline.inprocess.recorder.probe_state import COMMUNICATION, SAVE, TRANSFER, gate
from paceline.inprocess.wrappers import stand_in, step_out

COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
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

# Modules that may be imported later, and their functions that save a checkpoint.
SAVERS = {
    "torch.distributed.checkpoint": ("save", "async_save"),
    "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save"),
    "safetensors.torch": ("save_file", "save_model"),
}


# Module in which tensor-parallel code waits for an earlier collective.
WAITS = "torch.distributed._functional_collectives"


calls: dict[str, int] = {}  # function name -> calls, for functions that exchange data between ranks


def mark(owner: Any, name: str, code: int) -> None:
    """Wrap ``owner.name`` so that its outermost calls are recorded as a phase."""
    original = getattr(owner, name, None)
    if original is None or getattr(original, "_paceline_mark", None):
        return

    busy = False

    def begin(args: Any, kwargs: Any) -> bool | None:
        nonlocal busy
        if busy or get_ident() != gate.owner:
            return None
        busy = True
        if code == COMMUNICATION:
            calls[name] = calls.get(name, 0) + 1
        gate.put((perf_counter_ns(), code, stack(sys._getframe(2)) if code == SAVE else None))
        return True

    def end(begun: bool, result: Any, raised: BaseException | None) -> None:
        nonlocal busy
        busy = False
        gate.put((perf_counter_ns(), code + 1))

    marked = stand_in(original, "phase probe", begin, end)
    marked._paceline_mark = True
    hooks.replace(owner, name, marked)


def patch(torch: Any) -> None:
    """Wrap the functions of torch itself that are recorded as phases."""
    mark(torch.serialization, "save", SAVE)
    hooks.replace(torch, "save", torch.serialization.save)
    if torch.distributed.is_available():
        _patch_collectives(torch)
    if has_gpu(torch):
        for name in ("to", "cuda"):
            _mark_copies(torch, name)
        _mark_waits(torch)


def patch_savers(module: Any) -> None:
    """Wrap the saving functions of a module that has just been imported."""
    for name in SAVERS.get(module.__name__, ()):
        mark(module, name, SAVE)


def patch_waits(module: Any) -> None:
    """Wrap the function that waits for functional collectives."""
    mark(module, "wait_tensor", COMMUNICATION)


def _patch_collectives(torch: Any) -> None:
    from torch.distributed import distributed_c10d

    for name in COLLECTIVES:
        if hasattr(distributed_c10d, name):
            mark(distributed_c10d, name, COMMUNICATION)
            hooks.replace(torch.distributed, name, getattr(distributed_c10d, name))
    mark(torch._C._distributed_c10d.Work, "wait", COMMUNICATION)
    mark(torch.distributed, "_broadcast_coalesced", COMMUNICATION)  # of buffers, at the start of a DDP forward pass
    if WAITS in sys.modules:
        patch_waits(sys.modules[WAITS])
    for name in ("init_process_group", "destroy_process_group"):
        _note_group(torch, distributed_c10d, name)


def _note_group(torch: Any, owner: Any, name: str) -> None:
    def end(begun: bool, result: Any, raised: BaseException | None) -> None:
        gate.distributed = torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
        if gate.distributed:
            gate.rank = (torch.distributed.get_rank(), torch.distributed.get_world_size())

    noted = stand_in(getattr(owner, name), "process-group probe", lambda args, kwargs: True, end)
    hooks.replace(owner, name, noted)
    hooks.replace(torch.distributed, name, noted)


def _mark_copies(torch: Any, name: str) -> None:
    """Wrap a method that copies tensors to a GPU; calls that stay on one device are not recorded.

    Copies on another stream than the computing stream are not a phase: they are counted, and timed on their own stream.
    Function modes and tensor subclasses receive the wrapper as the function, because they compare it with
    ``torch.Tensor.to``.
    """
    original = getattr(torch.Tensor, name)
    in_use = torch.cuda.is_initialized
    plain = (torch.Tensor, torch.nn.Parameter)
    heard, tell = torch.overrides.has_torch_function_unary, torch.overrides.handle_torch_function

    def begin(args: Any, kwargs: Any) -> bool | None:
        if gate.nested or not in_use() or get_ident() != gate.owner:
            return None
        if args[0].is_cuda or type(args[0]) is not torch.Tensor or not (name == "cuda" or _to_gpu(plain, args, kwargs)):
            return None
        if gate.copies is not None and gate.copies.is_beside():
            return gate.copies.begin()
        gate.put((perf_counter_ns(), TRANSFER))
        return True

    def end(begun: Any, result: Any, raised: BaseException | None) -> None:
        if begun is True:
            gate.put((perf_counter_ns(), TRANSFER + 1))
        elif gate.copies is not None:
            gate.copies.end(begun)

    marked = stand_in(original, "copy probe", begin, end)

    @functools.wraps(original)
    def copied(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return tell(copied, (self,), self, *args, **kwargs) if heard(self) else marked(self, *args, **kwargs)
        except BaseException as error:
            step_out(error)
            raise

    hooks.replace(torch.Tensor, name, copied)


def _to_gpu(plain: tuple[type, ...], args: Any, kwargs: Any) -> bool:
    """Return whether a call of ``Tensor.to`` names a GPU: as a device, a number, a name, or a plain tensor on a GPU."""
    target = args[1] if len(args) > 1 else kwargs.get("device", kwargs.get("other"))
    if isinstance(target, str):
        return target.startswith("cuda")
    if isinstance(target, int):
        return not isinstance(target, bool)
    if type(target) in plain:
        return bool(target.is_cuda)
    return getattr(target, "type", None) == "cuda"  # true for a torch.device; a dtype has no type


def _mark_waits(torch: Any) -> None:
    """Record the computing stream's wait for a stream with copies: this wait is not overlapped."""

    def begin(args: Any, kwargs: Any) -> bool | None:
        copies = gate.copies
        if copies is None or gate.nested or get_ident() != gate.owner:
            return None
        if not copies.are_awaited(args[0], args[1] if len(args) > 1 else kwargs.get("stream")):
            return None
        gate.put((perf_counter_ns(), TRANSFER))
        return True

    def end(begun: bool, result: Any, raised: BaseException | None) -> None:
        gate.put((perf_counter_ns(), TRANSFER + 1))

    stream = torch.cuda.Stream
    if hasattr(stream, "wait_stream"):
        hooks.replace(stream, "wait_stream", stand_in(stream.wait_stream, "copy probe", begin, end))
