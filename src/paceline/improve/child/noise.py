"""How noisy are gradients? Their squared length at each step, and that of their mean over some steps in a row.

Written for `improve.batch`, which says what follows from it. Between steps that lie close together parameters hardly
move, so the mean of k gradients of B samples stands for one gradient of k B samples.
"""

from __future__ import annotations

import json
import os
from typing import Any

NOISE = "PACELINE_NOISE"  # set when gradients are to be measured
FOLDER = "noise"  # in the run's folder
WINDOW = 4  # steps in a row
_notes: _Notes | None = None


def patch(torch: Any) -> None:
    """Begin to measure the gradients of the optimizer that steps first."""
    global _notes  # noqa: PLW0603 one program, one measure; its end comes from elsewhere
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    _notes = _Notes(torch)
    register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: notes(optimizer))


def notes(optimizer: Any) -> None:
    """Note the gradients that an optimizer is about to use."""
    if _notes is not None and _notes.pid == os.getpid():
        _notes.step(optimizer)


def close() -> None:
    """Write what was measured."""
    if _notes is not None and _notes.pid == os.getpid():
        _notes.write()


class _Notes:
    """The gradients of one process, window by window."""

    def __init__(self, torch: Any) -> None:
        self.pid = os.getpid()
        self._torch = torch
        self._optimizers: list[int] = []
        self._sum: list[Any] = []
        self._squares: list[float] = []
        self._windows: list[tuple[float, float]] = []

    def step(self, optimizer: Any) -> None:
        """Add the gradients of one step to the window."""
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

    def write(self) -> None:
        """Write all windows to a file of this process."""
        folder = os.path.join(os.environ["PACELINE_WATCH_DIR"], FOLDER)
        os.makedirs(folder, exist_ok=True)
        found = {"windows": self._windows, "optimizers": len(self._optimizers)}
        with open(os.path.join(folder, f"{self.pid}.json"), "w", encoding="utf-8") as file:
            json.dump(found, file)
