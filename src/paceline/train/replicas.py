"""How do replicas that do not step together stay one run? What each mode of dp does at the engine's moments."""

from __future__ import annotations

from typing import Any, Protocol

from paceline.train.parallel.asynchronous import Rounds
from paceline.train.parallel.local import Meetings
from paceline.train.recipe import Recipe


class Replicas(Protocol):
    """One rank's part in a mode."""

    def begin(self) -> None:
        """Before the first forward of a step."""

    def after(self, step: int, applied: bool) -> None:
        """After the optimizer; steps are counted from 1, skipped ones too."""

    def due(self) -> int:
        """Return by how many steps the schedule goes on."""

    def meet(self) -> None:
        """Wait for all ranks, where that makes them the same."""

    def can_save(self, tried: int) -> None:
        """Have the same parameters on all ranks, or raise UsageError; after so many steps, skipped ones too."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps beside model and optimizers: tensors by name."""

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; the model has its parameters already."""

    def close(self) -> None:
        """At the end, on all ranks."""


def replicas_of(recipe: Recipe, model: Any, world: Any) -> Replicas | None:
    """Return the mode of a recipe for a model that is the same on all ranks; None where all step together."""
    if recipe.asynchronous.max_staleness is not None:
        return Rounds(recipe.asynchronous, model, world)
    return Meetings(recipe.local, model, world.data_group) if recipe.local.every is not None else None
