"""precision.autocast = "fp16": scale the loss before backward, so that small gradients survive in half precision.

fp16 has no numbers below 6e-8, where gradients often are. Each backward therefore starts from the loss times S, and
after it all gradients of the optimizers' parameters are divided by S. Code that clips, logs or sums gradients sees them
unscaled. Before the backward, gradients of earlier micro-steps are multiplied by S (a power of two, so no rounding
occurs).

A step with a gradient that is not finite is skipped, and S is halved; after 2,000 good steps S is doubled. These are
the rules of `torch.amp.GradScaler`.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from paceline.inprocess import hooks
from paceline.inprocess.settings import confirmation

_KEY = "precision.autocast"
_FIRST_SCALE = 2.0**16
_GROWS_AFTER = 2000  # consecutive good steps
_HOPELESS = 24  # consecutive skipped steps: the scale reached 1 long before
_live: list[_Scaling] = []


def patch(torch: Any) -> Callable[[Any], None]:
    """Install the hooks for loss scaling, which do nothing until the returned function is called.

    Returns:
        A function that starts the scaling. Its argument is a model that trains in fp16.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    scaling = _Scaling(torch)
    _live.append(scaling)
    _patch_backward(torch, scaling)
    _patch_optimizers(torch, scaling)
    _patch_scalers(torch, scaling)
    register_optimizer_step_pre_hook(scaling.before_step)
    register_optimizer_step_post_hook(scaling.after_step)
    return scaling.begin


def skipped() -> int:
    """Return the number of skipped optimizer steps in this process."""
    return sum(scaling.skipped for scaling in _live)


class _Scaling:
    """The loss scale in one process, and the number of skipped steps."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._device = "cpu"
        self._scaler: Any = None  # torch's own scaler multiplies the loss: the recorder sees the unscaled loss
        self._over = False  # the program scales its loss itself, or scaling has failed
        self._inside = False  # in a backward; a nested backward (of a checkpointed block) is scaled already
        self._scale = _FIRST_SCALE
        self._good = 0
        self._bad = 0
        self._aside: list[tuple[Any, Any]] = []  # parameters and the gradients that are hidden from an optimizer
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.steps = 0
        self.skipped = 0

    def made(self, optimizer: Any) -> None:
        """Register an optimizer, whose gradients are unscaled after each backward."""
        self._optimizers.add(optimizer)

    def begin(self, module: Any) -> None:
        """Scale the loss from the next backward on."""
        if self._scaler is not None or self._over or not self._torch.is_grad_enabled():
            return
        if any(hasattr(p, "to_local") for p in module.parameters()):
            self.give_up(
                "parameters are sharded over ranks, and each rank would detect infinite gradients only in its own shard"
            )
            return
        self._device = next(module.parameters()).device.type
        self._rescale(self._scale)

    def give_up(self, why: str) -> None:
        """Stop scaling the loss, and record the reason."""
        if not self._over:
            confirmation.gave_up(_KEY, why)
        self._over = True

    def scaled_by_program(self, scaler: Any) -> None:
        """Stop scaling if the program uses its own enabled scaler."""
        if scaler is not self._scaler and scaler.is_enabled():
            self.give_up("the program scales its loss itself")

    def backward(self, original: Any, tensors: Any, args: Any, kwargs: Any) -> Any:
        """Run backward from the scaled loss, then unscale the gradients."""
        if self._inside:
            return original(tensors, *args, **kwargs)
        self._inside = True
        try:
            return self._scaled(original, tensors, args, kwargs)
        finally:
            self._inside = False

    def _scaled(self, original: Any, tensors: Any, args: Any, kwargs: Any) -> Any:
        if self._scaler is None or self._over:
            return original(tensors, *args, **kwargs)
        self._multiply(self._scale)
        try:
            return original(self._scaler.scale(tensors), *args, **kwargs)
        finally:
            self._multiply(1 / self._scale)

    def _multiply(self, factor: float) -> None:
        parameters = {id(p): p for o in self._optimizers for g in o.param_groups for p in g["params"]}
        gradients = _gradients(parameters.values())
        if gradients:
            with self._torch.no_grad():
                self._torch._foreach_mul_(gradients, factor)

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Check the gradients before an optimizer step; if the step has a closure, after the closure computed them."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._judge(optimizer)
            return None

        def judged() -> Any:
            loss = closure()
            self._judge(optimizer)
            return loss

        return ((args[0], judged, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": judged})

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Restore the gradients after a skipped step."""
        for parameter, gradient in self._aside:
            parameter.grad = gradient
        self._aside = []

    def _judge(self, optimizer: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if not parameters or self._scaler is None or self._over:
            return
        self.steps += 1
        total = self._torch.nn.utils.get_total_norm(_gradients(parameters))
        if bool(self._torch.isfinite(total)):
            self._grow()
        else:
            self._skip(parameters)

    def _grow(self) -> None:
        self._bad = 0
        self._good += 1
        if self._good == _GROWS_AFTER:
            self._rescale(2 * self._scale)

    def _skip(self, parameters: list[Any]) -> None:
        """Hide the gradients from the optimizer, so that it updates nothing."""
        self._aside = [(p, p.grad) for p in parameters]
        for parameter in parameters:
            parameter.grad = None
        self.skipped += 1
        self._bad += 1
        self._rescale(max(1.0, self._scale / 2))
        confirmation.took(
            _KEY,
            f"{self.skipped} of {self.steps} optimizer steps were skipped, because gradients were NaN or "
            f"infinite in fp16",
        )
        if self._bad == _HOPELESS:
            self.give_up(
                f"{_HOPELESS} steps in a row had NaN or infinite gradients, although the loss scale was lowered"
            )

    def _rescale(self, scale: float) -> None:
        self._good = 0
        self._scale = scale
        self._scaler = self._torch.amp.GradScaler(self._device, init_scale=scale)


def _gradients(parameters: Any) -> list[Any]:
    gradients = [p.grad for p in parameters if p.grad is not None]
    return [g._values() if g.is_sparse else g for g in gradients]


def _patch_backward(torch: Any, scaling: _Scaling) -> None:
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        return scaling.backward(original, tensors, args, kwargs)

    hooks.install(torch.autograd, "backward", backward)


def _patch_optimizers(torch: Any, scaling: _Scaling) -> None:
    kind = torch.optim.Optimizer
    original = kind.add_param_group  # every optimizer registers its parameters with this method

    @functools.wraps(original)
    def add_param_group(self: Any, *args: Any, **kwargs: Any) -> Any:
        scaling.made(self)
        return original(self, *args, **kwargs)

    hooks.install(kind, "add_param_group", add_param_group)


def _patch_scalers(torch: Any, scaling: _Scaling) -> None:
    kind = torch.amp.GradScaler
    original = kind.scale

    @functools.wraps(original)
    def scale(self: Any, outputs: Any) -> Any:
        scaling.scaled_by_program(self)
        return original(self, outputs)

    hooks.install(kind, "scale", scale)
