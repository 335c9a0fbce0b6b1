"""When do gradients flow, and from which loss? One patch below both ``backward`` and ``autograd.grad``."""

from __future__ import annotations

from _thread import get_ident
from time import perf_counter_ns, thread_time_ns
from typing import Any

from paceline.observe.probe import guard, optimizers
from paceline.observe.probe.gate import BACKWARD, gate
from paceline.observe.probe.modules import wanted_stack

_unscaled: Any = None  # the loss that GradScaler.scale was given last


def patch(torch: Any) -> None:
    """Mark outermost runs of the autograd engine, and remember the loss before it is scaled."""
    _patch_engine(torch)
    _patch_scaler(torch)


def loss_reader(torch: Any) -> Any:
    """Return a function from the root tensors of a backward to the loss: a float, or None if it would cost a wait."""
    plain = torch.Tensor
    no_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)

    def read(roots: Any) -> float | None:
        loss = roots[0] if isinstance(roots, (tuple, list)) and roots else roots
        if _unscaled is not None:
            loss = _unscaled
        if type(loss) is not plain or loss.device.type != "cpu" or loss.numel() != 1 or no_modes():
            return None
        return float(loss.item())

    return read


def _patch_engine(torch: Any) -> None:
    original = torch.autograd._engine_run_backward
    read_loss = loss_reader(torch)

    def begin(roots: Any) -> int | None:
        global _unscaled
        if get_ident() != gate.owner:
            gate.owner = get_ident()  # who trains is who runs backward
        if not gate.scribe_started:
            gate.start_scribe()
        loss = read_loss(roots)
        _unscaled = None
        gate.put((perf_counter_ns(), BACKWARD, loss, wanted_stack() if gate.frames_wanted else None))
        return thread_time_ns() if gate.distributed else None

    def end(begun_cpu: int | None) -> None:
        now = perf_counter_ns()
        gate.put((now, BACKWARD + 1, None if begun_cpu is None else thread_time_ns() - begun_cpu))
        if gate.window is not None and not optimizers.described:
            gate.window()

    def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if gate.nested:
            return original(t_outputs, *args, **kwargs)
        try:
            cpu = begin(t_outputs)
        except Exception as error:
            guard.fault(error, "backward probe")
            return original(t_outputs, *args, **kwargs)
        gate.nested = True
        try:
            return original(t_outputs, *args, **kwargs)
        except BaseException as error:
            error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
            raise
        finally:
            gate.nested = False
            end(cpu)

    guard.replace(torch.autograd, "_engine_run_backward", _engine_run_backward)


def _patch_scaler(torch: Any) -> None:
    scaler = torch.amp.GradScaler
    original = scaler.scale

    def scale(self: Any, outputs: Any) -> Any:
        global _unscaled
        if isinstance(outputs, torch.Tensor):
            _unscaled = outputs.detach()
        return original(self, outputs)

    scale.__doc__ = original.__doc__
    guard.replace(scaler, "scale", scale)
