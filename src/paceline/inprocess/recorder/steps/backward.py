"""Record backward passes and their losses, with one hook below both ``backward`` and ``autograd.grad``."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable
from time import perf_counter_ns, thread_time_ns
from typing import Any

from paceline.inprocess import hooks
from paceline.inprocess.recorder.probe_state import BACKWARD, gate
from paceline.inprocess.recorder.source_instrumentation import NoSourceError, woven
from paceline.inprocess.recorder.steps import optimizers
from paceline.inprocess.recorder.steps.forward import wanted_stack
from paceline.inprocess.recorder.tensors import Reader, number_reader
from paceline.inprocess.wrappers import stand_in

_unscaled: Any = None  # the last loss passed to GradScaler.scale


def patch(torch: Any) -> None:
    """Hook outermost runs of the autograd engine, and remember each loss before it is scaled."""
    _patch_engine(torch)
    _patch_scaler(torch)


def loss_reader(torch: Any) -> Any:
    """Return a function that takes the root tensors of a backward and returns the loss, a pending loss or None."""
    reader = Reader(torch)
    number = number_reader(torch)

    def read(roots: Any) -> Any:
        loss = _unscaled
        if loss is None:
            loss = roots[0] if isinstance(roots, (tuple, list)) and roots else roots
        if gate.take_loss is not None:
            found = reader.on_device(loss, gate.take_loss)
            return number(loss) if found is None else found
        return number(loss)

    return read


def forget_loss() -> Any:
    """Return the last scaled loss and drop the reference to it."""
    global _unscaled
    loss, _unscaled = _unscaled, None
    return loss


def _patch_engine(torch: Any) -> None:
    original, begin = torch.autograd._engine_run_backward, _beginning(torch)
    try:
        marked = woven(original, ("t_outputs",), begin, _end, torch.compiler.is_dynamo_compiling)
    except NoSourceError:
        marked = _wrapped(original, begin)
    hooks.replace(torch.autograd, "_engine_run_backward", marked)


def _wrapped(original: Any, begin: Any) -> Any:
    """Return `original` wrapped with the hooks, for torch without source files."""

    def outermost(args: Any, kwargs: Any) -> int | None:
        return None if gate.nested else begin(args[0] if args else kwargs.get("t_outputs"))

    return stand_in(original, "backward probe", outermost, lambda begun, result, raised: _end(begun, result))


def _beginning(torch: Any) -> Callable[[Any], int | None]:
    """Return the hook before the engine, which records the event and returns the thread's CPU time (or 0)."""
    read_loss = loss_reader(torch)

    def begin(roots: Any) -> int | None:
        global _unscaled
        try:
            thread = get_ident()
            if thread != gate.owner:
                gate.owner = thread  # the training thread is the thread that runs backward
                gate.thread_switches += 1
            if not gate.scribe_started:
                gate.start_scribe()
            gate.backwards += 1
            gate.unstepped += 1
            if gate.unseen_updates is not None:
                gate.unseen_updates.look()
            loss = read_loss(roots)
            _unscaled = None
            gate.put((perf_counter_ns(), BACKWARD, loss, wanted_stack() if gate.frames_wanted else None))
            gate.nested = True
            return thread_time_ns() if gate.distributed else 0
        except Exception as error:
            gate.nested = False
            hooks.fault(error, "backward probe")
            return None

    return begin


def _end(begun_cpu: int, _: Any) -> None:
    gate.nested = gate.fed = False
    try:
        now = perf_counter_ns()
        gate.put((now, BACKWARD + 1, thread_time_ns() - begun_cpu if begun_cpu else None))
        if gate.window is not None and not optimizers.described:
            gate.window(0)
    except Exception as error:
        hooks.fault(error, "backward probe")


def _patch_scaler(torch: Any) -> None:
    reader = Reader(torch)

    def begin(args: Any, kwargs: Any) -> None:
        global _unscaled
        outputs = args[1] if len(args) > 1 else kwargs.get("outputs")
        _unscaled = reader.detached(outputs)

    scaler = torch.amp.GradScaler
    hooks.replace(scaler, "scale", stand_in(scaler.scale, "loss scaling probe", begin))
