"""Record checksums of model inputs, losses, and the final parameters and buffers."""

from __future__ import annotations

import functools
import os
from typing import Any

from paceline.inprocess.other_threads import objects_of
from paceline.inprocess.settings import loss_scaling, outermost_forward
from paceline.inprocess.settings.digest import digest
from paceline.inprocess.settings.trial import process_notes
from paceline.inprocess.settings.trial.first_gradients import FIXED, FirstGradients, fix_dropout, options_of
from paceline.inprocess.settings.trial.rank import rank_and_world

FOLDER = "witness"  # in the run's folder


def patch(torch: Any, _: str = "") -> None:
    """Start to record checksums in this process."""
    notes = _Checksums(torch)
    outermost_forward.around(torch, notes.fed)
    outermost_forward.around(torch, notes.first.around)
    if os.environ.get(FIXED):
        fix_dropout(torch)
    _patch_backward(torch, notes)
    _patch_steps(notes)
    process_notes.at_end(FOLDER, notes.found)


class _Checksums:
    """The checksums of one process."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._fed: list[int] = []
        self._losses: list[float] = []
        self._optimizers: dict[int, Any] = {}
        self._steps = 0
        self.first = FirstGradients(torch)

    def fed(self, module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        """Record a checksum of the inputs of a forward, and run the forward."""
        if self._torch.is_grad_enabled():
            self._fed.append(digest([args, kwargs]))
        return forward(*args, **kwargs)

    def backward(self, loss: Any) -> None:
        """Record the value of a loss."""
        if isinstance(loss, self._torch.Tensor) and loss.numel() == 1:
            self._losses.append(float(loss.detach()))

    def step(self, optimizer: Any) -> None:
        """Count a parameter update, and remember its optimizer."""
        self._steps += 1
        self._optimizers[id(optimizer)] = optimizer

    def found(self) -> dict[str, Any] | None:
        """Return all recorded checksums, or None for a process that trained nothing."""
        if not self._steps and not self._fed:
            return None
        groups = [g for optimizer in self._optimizers.values() for g in optimizer.param_groups]
        parameters = [p for group in groups for p in group["params"]]
        modules = objects_of(self._torch.nn.Module)
        buffers = list({id(b): b for m in modules for b in m._buffers.values() if b is not None}.values())
        return {
            "fed": self._fed,
            "losses": [loss.hex() for loss in self._losses],
            "steps": self._steps,
            "skipped": loss_scaling.skipped(),
            "parameters": digest(parameters),
            "gradients": digest([p.grad for p in parameters]),
            "buffers": sorted(digest(b) for b in buffers),
            "counts": sorted(digest(b) for b in buffers if not (b.is_floating_point() or b.is_complex())),
            "rates": [group.get("lr") for group in groups if isinstance(group.get("lr"), float)],
            "options": options_of(list(self._optimizers.values())),
            "first_gradients": self.first.steps(),
            "draws": self.first.draws,
            "rank": rank_and_world(self._torch)[0],
        }


def _patch_backward(torch: Any, notes: _Checksums) -> None:
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        notes.backward(tensors[0] if isinstance(tensors, list | tuple) and len(tensors) else tensors)
        return original(tensors, *args, **kwargs)

    torch.autograd.backward = backward


def _patch_steps(notes: _Checksums) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: notes.first.before_step(optimizer))
    register_optimizer_step_post_hook(lambda optimizer, args, kwargs: notes.step(optimizer))
