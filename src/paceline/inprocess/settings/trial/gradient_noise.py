"""Measure gradient noise: the squared norm of each step's gradient, and of the mean gradient of several steps in a row.

`tune.search.batch_size` evaluates these numbers. Parameters hardly change within a few steps, so the mean of k
gradients of B samples approximates one gradient of k B samples.
"""

from __future__ import annotations

from typing import Any

from paceline.inprocess.settings.trial import process_notes

NOISE = "PACELINE_NOISE"  # set if gradients are to be measured
FOLDER = "noise"  # in the run's folder
WINDOW = 4  # consecutive steps


def patch(torch: Any) -> None:
    """Record gradient norms in the steps of the first optimizer that makes a step."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    notes = _GradientNorms()
    register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: notes.step(optimizer))
    process_notes.at_end(FOLDER, notes.found)


class _GradientNorms:
    """The squared gradient norms of one process. A window is a number of consecutive steps."""

    def __init__(self) -> None:
        self._optimizers: list[int] = []
        self._sum: list[Any] = []
        self._squares: list[float] = []
        self._windows: list[tuple[float, float]] = []

    def step(self, optimizer: Any) -> None:
        """Add the gradients of one step of the first optimizer to the current window."""
        if id(optimizer) not in self._optimizers:
            self._optimizers.append(id(optimizer))
        if id(optimizer) != self._optimizers[0]:
            return
        gradients = [p.grad.detach() for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if any(g.is_sparse for g in gradients) or (self._sum and len(self._sum) != len(gradients)):
            self._sum, self._squares = [], []
            return
        self._squares.append(self._square(gradients))
        sums = self._sum or [0.0] * len(gradients)
        self._sum = [one + gradient for one, gradient in zip(sums, gradients, strict=True)]
        if len(self._squares) == WINDOW:
            mean = self._square(self._sum) / WINDOW**2
            self._windows.append((sum(self._squares) / WINDOW, mean))
            self._sum, self._squares = [], []

    def _square(self, tensors: list[Any]) -> float:
        return float(sum(float(t.float().pow(2).sum()) for t in tensors))

    def found(self) -> dict[str, Any] | None:
        """Return the pairs of gradient norms of all windows and the number of optimizers; None without any training."""
        if not self._optimizers:
            return None
        return {"windows": self._windows, "optimizers": len(self._optimizers)}
