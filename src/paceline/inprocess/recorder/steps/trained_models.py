"""At which step does a program begin to train a model of another size? Told by its optimizers.

A program may train several models one after the other. Their steps take different times for a good reason, so a reader
must not compare them. Models are told apart by the class, the tensors and the parameters of the optimizer that steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_MOST = 64  # models that are told; a program with more trains one for each client or trial

Note = Callable[..., None]


class TrainedModels:
    """Notes the first step of each optimizer that is unlike those before it."""

    def __init__(self, note: Note, described: Mapping[int, Mapping[str, Any]]) -> None:
        self._note = note
        self._described = described
        self._last: int | None = None
        self._seen: set[tuple[Any, ...]] = set()

    def stepped(self, optimizer: int | None, step: int) -> None:
        """An optimizer, by its id, ended this step; None: no optimizer was seen to."""
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
