"""What did the device spend the steps on whose phases only the host timed? Where it timed some, as much as there.

The host of a GPU runs ahead of it: when it waits says little of what the GPU does. So in a run in which the device
timed some steps (`observe.probe.device_clock`), the others get these steps' shares; what one of them took longer than a
timed step in the median is booked where the host spent more than it usually does (a checkpoint, a late batch).
"""

from __future__ import annotations

import numpy as np

from paceline.record.layout import FLAG_DEVICE_TIMED
from paceline.record.run import Rank, Rows

FEW = 8  # timed steps below which they do not speak for the others


def device_timed_steps(rows: Rows) -> int:
    """Return how many steps the device timed."""
    return int(((rows["flags"] & FLAG_DEVICE_TIMED) != 0).sum())


def at_the_device(rows: Rows, slots: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the slots (seconds, by name, one for each row) with the device's word for all rows; sums stay."""
    timed = (rows["flags"] & FLAG_DEVICE_TIMED) != 0
    if timed.sum() < FEW or timed.all():
        return slots
    table = np.stack(list(slots.values()))  # slots x rows
    shares = table[:, timed].sum(axis=1, keepdims=True) / max(table[:, timed].sum(), 1e-12)
    walls = table[:, ~timed].sum(axis=0)
    usual = np.minimum(walls, np.median(table[:, timed].sum(axis=0)))
    more = np.maximum(table[:, ~timed] - np.median(table[:, ~timed], axis=1, keepdims=True), 0.0)
    total = more.sum(axis=0)
    where = np.where(total > 0, more / np.where(total > 0, total, 1.0), shares)
    table[:, ~timed] = usual * shares + (walls - usual) * where
    return dict(zip(slots, table, strict=True))


def why_host_times(rank: Rank) -> str | None:
    """Say why the phases of a rank on a GPU are the host's; None when they are the device's."""
    if rank.device == "cpu" or device_timed_steps(rank.steps) >= FEW:
        return None
    told = (rank.summary.get("device") or {}).get("off")
    if told:
        return f"phases were timed on the host, because CUDA events could not be used ({told})"
    return f"phases were timed on the host, because CUDA events timed fewer than {FEW} complete steps"
