"""[memory]: save less of the forward pass for the backward pass.

Checkpointing does not change training: values that are not saved are recomputed with the same random numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.inprocess.settings import activation_checkpointing, micro_batches


def patch(torch: Any, settings: Mapping[str, Any]) -> None:
    """Apply the [memory] settings of a recipe."""
    if "checkpoint_every" in settings:
        activation_checkpointing.every(torch, settings["checkpoint_every"])
    if "activation_budget" in settings:
        activation_checkpointing.within(torch, settings["activation_budget"])
    if "micro_batches" in settings:
        micro_batches.patch(torch, settings["micro_batches"])
