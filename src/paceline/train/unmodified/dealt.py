"""How do ranks of a library that spreads itself come to the batches of one process? Each takes its rows of them.

Libraries deal samples out in an order of their own, or fill a short last batch up with samples from elsewhere: then
losses are not those of one process. Where ranks cannot have as many rows each, and the library takes the mean over
ranks, the whole batch on each rank has the same mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

from paceline.train.unmodified import draws
from paceline.train.unmodified.rows import bounds
from paceline.train.unmodified.state import Spread


def of_small(batches: Any, ranks: int, rank: int, *, weighs: bool) -> Iterator[Sequence[Any]]:
    """Yield a rank's part of batches that are put together of one for each rank.

    Args:
        batches: A batch sampler of a rank's size.
        ranks: How many there are.
        rank: This one.
        weighs: Losses are weighed by what they are of, so that parts need not be equal.
    """
    given = iter(batches)
    while small := list(islice(given, ranks)):
        if len(small) == ranks or not getattr(batches, "drop_last", False):
            rows = list(chain(*small))
            alike = len(rows) >= ranks if weighs else len(rows) % ranks == 0
            yield rows[slice(*bounds(len(rows), ranks, rank))] if alike else rows


def uneven(rows: int, ranks: int) -> str:
    """Return why a batch cannot be dealt out."""
    return (
        f"the last batch has {rows} rows, which {ranks} ranks cannot share equally, as their mean asks "
        "for; give the loader drop_last=True, or another batch_size"
    )


class Parts:
    """A batch sampler of a rank's rows of each batch of another one, which draws the same on all ranks."""

    def __init__(self, spread: Spread, batches: Any) -> None:
        self._spread, self._batches = spread, batches
        for name in ("sampler", "batch_size", "drop_last"):  # which Lightning may look at
            setattr(self, name, getattr(batches, name, None))

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Sequence[Any]]:
        self._draw_as_first()
        ranks = self._spread.ranks
        for batch in self._batches:
            rows = list(batch)
            if len(rows) % ranks:
                self._spread.refuse(uneven(len(rows), ranks))
            yield rows[slice(*bounds(len(rows), ranks, self._spread.rank))]

    def _draw_as_first(self) -> None:
        """Go on with the random numbers of rank 0, that all draw one order."""
        torch = self._spread.torch
        if torch.distributed.is_initialized():
            given = [draws.state(torch)]
            torch.distributed.broadcast_object_list(given, 0)
            on_cpu, _, of_python, of_numpy = given[0]
            draws.set_state(torch, (on_cpu, None, of_python, of_numpy))
