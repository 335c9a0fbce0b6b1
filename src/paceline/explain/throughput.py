"""How many samples a second does a run train on? Samples that several ranks see count once.

Tensor-parallel ranks compute the same loss from the same samples, and of pipeline stages only the last has a loss.
Ranks whose losses are the same to the last bit in every step see the same samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.explain.model import RankBreakdown
from paceline.record import layout
from paceline.record.run import Rank

_LEAST_ALIKE = 8  # steps


def samples_per_s(ranks: Sequence[tuple[Rank, RankBreakdown]]) -> float | None:
    """Return the samples a second over all ranks; None if no rank's samples are known."""
    known = [(rank, own.samples_per_s) for rank, own in ranks if own.samples_per_s is not None]
    with_loss = [(rank, rate) for rank, rate in known if _losses(rank)]
    rates: dict[bytes, float] = {}
    for number, (rank, rate) in enumerate(with_loss or known):
        identity = _losses(rank) or str(number).encode()
        rates[identity] = max(rate, rates.get(identity, 0.0))
    return sum(rates.values()) if rates else None


def _losses(rank: Rank) -> bytes:
    """Return the losses of the first steps as bytes; empty if there are too few, or if they are all the same."""
    seen = rank.steps[(rank.steps["flags"] & layout.FLAG_LOSS) != 0][: 4 * _LEAST_ALIKE]["loss"]
    finite = seen[np.isfinite(seen)]
    return finite.tobytes() if len(finite) >= _LEAST_ALIKE and np.ptp(finite) > 0 else b""
