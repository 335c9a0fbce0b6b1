"""The steps that are left of an epoch, with the blocks that they need asked for ahead of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from paceline.data.order.order import Order
from paceline.data.order.position import Position
from paceline.data.order.slices import Slice, coming, planned
from paceline.data.reading.blocks import BlockStore
from paceline.data.reading.decoded_cache import Cache

Numbers = NDArray[np.int64]
_PLANNED = 16  # batches whose blocks are asked for in one go
_PLANNED_NUMBERS = 64  # the same where there are no blocks


def steps_ahead(
    order: Order, at: Position, share: Slice, store: BlockStore | None, cache: Cache | None
) -> Iterator[tuple[int, Numbers]]:
    """Yield, for each step that is left, how many samples are consumed after it, and its samples.

    Args:
        order: Of the epoch.
        at: Where the loop begins.
        share: The rank.
        store: What reads blocks; None where there are none.
        cache: What is decoded already, and need not be read.
    """
    most = _PLANNED if store is not None else _PLANNED_NUMBERS
    for after, places in planned(at.samples, at.consumed, share, most):
        together = np.concatenate(places)
        ids = order.ids(together)
        if store is not None:
            beyond = coming(at.samples, after[-1], share, store.foreseen)
            soon, new = np.append(together, beyond), np.append(ids, order.ids(beyond))
            unknown = ... if cache is None else ~cache.known(new)
            store.want(order.blocks(soon[unknown]))
        yield from zip(after, np.split(ids, np.cumsum([len(own) for own in places[:-1]])), strict=True)
