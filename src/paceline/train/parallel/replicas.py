"""The interface between the engine and the modes in which replicas step independently."""

from __future__ import annotations

from typing import Any, Protocol

from paceline.train.parallel.asynchronous import Asynchronous, Rounds
from paceline.train.parallel.local import Local, Meetings


class Replicas(Protocol):
    """One rank's part in a mode in which replicas step independently."""

    def begin(self) -> None:
        """Called before the first forward pass of a step."""

    def after(self, step: int, applied: bool) -> None:
        """Called after the optimizer step. `step` counts from 1, with skipped steps."""

    def due(self) -> int:
        """Return by how many steps the learning-rate schedule advances."""

    def meet(self) -> None:
        """Wait for all ranks, if that gives them the same parameters."""

    def can_save(self, tried: int) -> None:
        """Make sure that all ranks have the same parameters, or raise UsageError. `tried` counts skipped steps too."""

    def state(self) -> dict[str, Any]:
        """Return the tensors, by name, that a checkpoint needs besides the model and the optimizer."""

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint, whose parameters the model has already loaded."""

    def close(self) -> None:
        """Called at the end of a run, on all ranks."""


def replicas_of(local: Local, asynchronous: Asynchronous, model: Any, world: Any) -> Replicas | None:
    """Return the mode of a recipe for a model that is the same on all ranks; None where all step together."""
    if asynchronous.max_staleness is not None:
        return Rounds(asynchronous, model, world)
    return Meetings(local, model, world.data_group) if local.every is not None else None
