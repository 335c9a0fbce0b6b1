"""Record the step at which a program starts to train another model, identified by its optimizer.

A program may train several models one after the other. The step times of the models differ for a good reason, so a
report must not compare them. Models are distinguished by the optimizer that steps: its class and its numbers of tensors
and parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_MOST = 64  # limit of recorded models; a program with more trains one for each client or trial

Note = Callable[..., None]


class TrainedModels:
    """Writes a note at the first step of each optimizer that differs from the earlier ones."""

    def __init__(self, note: Note, described: Mapping[int, Mapping[str, Any]]) -> None:
        self._note = note
        self._described = described
        self._last: int | None = None
        self._seen: set[tuple[Any, ...]] = set()

    def stepped(self, optimizer: int | None, step: int) -> None:
        """Record the optimizer (by its id) that ended this step; None if no optimizer step was visible."""
        if optimizer is None or optimizer == self._last:
            return
        self._last = optimizer
        about = self._described.get(optimizer)
        if about is None or len(self._seen) >= _MOST:
            return
        kind = (about["class"], about["tensors"], about["parameters"])
        if kind not in self._seen:
            self._seen.add(kind)
            self._note("model", step=step, tensors=about["tensors"], parameters=about["parameters"])
