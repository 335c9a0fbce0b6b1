"""How does a user's own function change whole batches? There where they are made, with numbers of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.data.order.counter_rng import key_of

_BATCHES = 4  # what random numbers are for


def transformed(batch: Any, change: Callable[[Any, Any], Any], seeds: tuple[int, int], first: int) -> Any:
    """Return a batch after the user's own function of it.

    Args:
        batch: What was made.
        change: The function, of the batch and a `torch.Generator`.
        seeds: Seed and epoch.
        first: Number of the first sample of the batch: with the seeds it seeds the generator.
    """
    import torch

    generator = torch.Generator()
    generator.manual_seed(key_of(*seeds, _BATCHES, first) & 0x7FFFFFFFFFFFFFFF)
    return change(batch, generator)
