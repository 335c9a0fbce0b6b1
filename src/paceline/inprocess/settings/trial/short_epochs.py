"""Short epochs: end each epoch after some batches, so that the equivalence check includes the ends of epochs.

Actions between epochs (a new epoch number for the dataset, an evaluation, other options) then happen within the first
steps. The epochs of the baseline are shortened in the same way.
"""

from __future__ import annotations

import functools
from typing import Any
from weakref import WeakKeyDictionary

BATCHES = "PACELINE_EPOCH_BATCHES"  # batches per epoch, if epochs are shortened


def patch(torch: Any, batches: int) -> None:
    """End each epoch of each loader after this number of batches."""
    from torch.utils.data import dataloader

    iterator_class = dataloader._BaseDataLoaderIter
    original, reset = iterator_class.__next__, iterator_class._reset
    returned: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        count = returned.get(self, 0)
        if count >= batches:
            raise StopIteration
        returned[self] = count + 1
        return original(self)

    @functools.wraps(reset)
    def _reset(self: Any, loader: Any, first_iter: bool = False) -> Any:
        returned.pop(self, None)
        return reset(self, loader, first_iter)

    iterator_class.__next__, iterator_class._reset = __next__, _reset
