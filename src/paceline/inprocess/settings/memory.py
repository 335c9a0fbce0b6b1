"""[memory]: what forward keeps for backward, less of it.

Nothing of the training changes: what is not kept is computed again, with the same random numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.inprocess.settings import activation_checkpointing, micro_batches


def patch(torch: Any, settings: Mapping[str, Any]) -> None:
    """Put the settings in force."""
    if "checkpoint_every" in settings:
        activation_checkpointing.every(torch, settings["checkpoint_every"])
    if "activation_budget" in settings:
        activation_checkpointing.within(torch, settings["activation_budget"])
    if "micro_batches" in settings:
        micro_batches.patch(torch, settings["micro_batches"])
