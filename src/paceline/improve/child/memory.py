"""[memory]: what forward keeps for backward, less of it.

Nothing of the training changes: what is not kept is computed again, with the same random numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.improve.child import blocks, chunks


def patch(torch: Any, settings: Mapping[str, Any]) -> None:
    """Put the settings in force."""
    if "checkpoint_every" in settings:
        blocks.every(torch, settings["checkpoint_every"])
    if "activation_budget" in settings:
        blocks.within(torch, settings["activation_budget"])
    if "micro_batches" in settings:
        chunks.patch(torch, settings["micro_batches"])
