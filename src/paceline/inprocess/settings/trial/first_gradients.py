"""Record the gradients of the first optimizer steps, and the optimizers' options; a `numeric` change must keep both.

For each parameter, up to 512 evenly spaced elements are recorded. To make gradients comparable between number formats,
dropout draws its mask in float32 for any input format, and compiled code draws as eager code does.
"""

from __future__ import annotations

import functools
from typing import Any

FIXED = "PACELINE_FIXED_DROPOUT"  # set if gradients of different number formats are compared
_STEPS = 4  # several, because a loss scale that is too large may skip the first updates
_ELEMENTS = 512  # per parameter
_PLAIN = (int, float, bool, str, type(None), tuple, list)
_MEANS_NOTHING = ("params", "lr", "initial_lr", "fused", "foreach", "capturable", "differentiable", "param_names")


class FirstGradients:
    """Records the gradients of the first optimizer steps in one process."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._steps: list[list[float]] = []
        self._first: int | None = None  # id of the first optimizer that steps
        self.options: list[str] = []
        self.draws = False  # whether a forward in training drew random numbers

    def before_step(self, optimizer: Any) -> None:
        """Record the gradients before a step of the first optimizer."""
        if self._first is None:
            self._first = id(optimizer)
        if id(optimizer) == self._first and len(self._steps) < _STEPS:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            self._steps.append([value for p in parameters for value in self._sampled(p.grad)])

    def around(self, module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        """Run a forward, and record whether it draws random numbers in training."""
        if self.draws or not (module.training and self._torch.is_grad_enabled()):
            return forward(*args, **kwargs)
        before = self._states()
        result = forward(*args, **kwargs)
        self.draws = self._states() != before
        return result

    def steps(self) -> list[list[str]]:
        """Return the recorded elements of each step as hexadecimal numbers."""
        return [[value.hex() for value in step] for step in self._steps]

    def _states(self) -> list[bytes]:
        torch = self._torch
        found = [torch.get_rng_state()]
        if torch.cuda.is_initialized():
            found += torch.cuda.get_rng_state_all()
        return [state.numpy().tobytes() for state in found]

    def _sampled(self, gradient: Any) -> list[float]:
        if gradient is None:
            return []
        if hasattr(gradient, "to_local"):
            gradient = gradient.to_local()
        if gradient.layout != self._torch.strided:
            gradient = gradient.to_dense()
        flat = gradient.detach().reshape(-1)
        some = flat[:: max(1, len(flat) // _ELEMENTS)][:_ELEMENTS]
        values: list[float] = some.to(self._torch.float32).cpu().tolist()
        return values


def options_of(optimizers: list[Any]) -> list[str]:
    """Return the options that are part of the algorithm, such as weight decay, as one string per parameter group."""
    return [
        f"{type(optimizer).__name__} {sorted((k, v) for k, v in group.items() if _is_option(k, v))}"
        for optimizer in optimizers
        for group in optimizer.param_groups
    ]


def _is_option(key: str, value: Any) -> bool:
    return key not in _MEANS_NOTHING and isinstance(value, _PLAIN)


def fix_dropout(torch: Any) -> None:
    """Draw the masks of dropout in float32, and in compiled code as in eager code."""
    functional = torch.nn.functional
    original = functional.dropout

    @functools.wraps(original)
    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not training or not 0.0 < p < 1.0:
            return original(input, p, training, inplace)
        kept = torch.rand(input.shape, device=input.device, dtype=torch.float32) >= p
        factor = kept.to(input.dtype) / (1 - p)
        return input.mul_(factor) if inplace else input * factor

    functional.dropout = dropout
    try:
        from torch._inductor import config
    except ImportError:
        return
    config.fallback_random = True
