"""Checks in later steps that the loss of a batch is a mean over its samples, or over what `weight` counts.

The first step is compared as a whole (`first_step.py`). A loss can use the whole batch later, such as a penalty whose
factor is 0 at first, and ranks that have parts of a batch would then train something else. In some steps the loss of a
part is therefore computed once more, and also for both halves of it; the model does not run again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from paceline.core.errors import UsageError
from paceline.core.layout import Layout
from paceline.train import rows
from paceline.train.comparison import advice, samples
from paceline.train.comparison.restored import restored_state
from paceline.train.passes import Loss
from paceline.train.ranks import random_states

_EVERY = 512  # calls between two checks; before that, calls 2, 4, 8, 16 and so on are checked
_TOLERANCE = 1e-4  # for rounding; larger for losses in bf16 or fp16


class CheckedLoss:
    """A loss that is checked in some of its calls."""

    def __init__(self, loss: Loss, weight: Callable[[Any], Any] | None, layout: Layout, *, has_state: bool) -> None:
        """Store the arguments.

        Args:
            loss: The loss of the run.
            weight: How much a target counts; None: all parts alike.
            layout: The layout of the run.
            has_state: Whether calls of the loss change something, such as a counter, which must be restored.
        """
        self._loss, self._weight, self._layout, self._has_state = loss, weight, layout, has_state
        self._calls = 0

    def __call__(self, output: Any, target: Any) -> Any:
        """Return the loss of an output and a target.

        Raises:
            UsageError: The loss is not the mean of the losses of two halves.
        """
        self._calls = calls = self._calls + 1
        if calls > 1 and not (calls & (calls - 1) if calls < _EVERY else calls % _EVERY):
            self._check(output, target)
        return self._loss(output, target)

    def _check(self, output: Any, target: Any) -> None:
        import torch

        if not rows.is_known((output, target)):
            return
        drawn = {**random_states.of_torch(_device(output)), **random_states.of_host()}
        try:
            with torch.no_grad():
                found = [self._of(*part) for part in _parts(output, target)]
        except Exception:  # such as a loss of pairs of samples, whose halves have an odd number
            return
        finally:
            random_states.put(drawn, _device(output))
        if not found:
            return
        (whole, _, size), (again, _, _), *halves = found
        weights = sum(weight for _, weight, _ in halves)
        mean = sum(weight * loss for loss, weight, _ in halves if weight) / weights if weights else whole
        scale = max(abs(whole), *(abs(loss) for loss, weight, _ in halves if weight), 0.0)
        largest = [float(value.abs().max()) for value in samples.numbers(output) if value.numel()]
        rounding = 8 * size * max(largest, default=0.0)
        if whole == again and abs(whole - mean) > max(_TOLERANCE, 8 * size) * scale + rounding:
            raise UsageError(advice.of_loss(self._layout, self._calls, whole, mean))

    def _of(self, output: Any, target: Any) -> tuple[float, float, float]:
        """Return the loss, the weight, and the distance of 1 to the next number in the format of the loss."""
        import torch

        with restored_state((self._loss, self._weight), ()) if self._has_state else nullcontext():
            loss = self._loss(output, target)
            weight = 1.0 if self._weight is None else float(self._weight(target))
        dtype = loss.dtype if loss.is_floating_point() else torch.float32
        return float(loss), weight, torch.finfo(dtype).eps


def _parts(output: Any, target: Any) -> list[tuple[Any, Any]]:
    """Return an even number of samples of an output and a target, twice, and then both halves of these samples."""
    count = rows.count_of((output, target))
    even = count // 2 * 2
    if not even or rows.count_of(output) != count:
        return []
    slices = [slice(0, even), slice(0, even), slice(0, even // 2), slice(even // 2, even)]
    return [rows.selected((output, target), count, which) for which in slices]


def _device(output: Any) -> Any:
    import torch

    return next((value.device for value in samples.numbers(output)), torch.device("cpu"))
