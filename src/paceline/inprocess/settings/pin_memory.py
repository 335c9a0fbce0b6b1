"""loader.pin_memory: pin the batches of iterations that start after the program has initialised CUDA.

Pinning uses CUDA, and a program must make its forks before it uses CUDA. Therefore this setting never initialises CUDA:
only the program itself does.
"""

from __future__ import annotations

import functools
from typing import Any
from weakref import WeakSet

from paceline.inprocess import hooks
from paceline.inprocess.gpu_detection import has_gpu
from paceline.inprocess.settings import confirmation

_KEY = "loader.pin_memory"


def patch(torch: Any) -> None:
    """Make loader iterators pin their batches if CUDA is in use when the iterator is created."""
    if not has_gpu(torch):
        confirmation.refused(_KEY, "there is no CUDA device, so pinned memory has no use")
        return
    from torch.utils.data import dataloader

    patch_iterator(torch, dataloader._BaseDataLoaderIter)


def patch_iterator(torch: Any, iterator: Any) -> None:
    """Make a class of loader iterators pin batches.

    Args:
        torch: The module; its `cuda.is_initialized` shows whether the program uses CUDA in this process.
        iterator: The base class of torch's two iterator classes.
    """
    original = iterator.__init__
    ours: WeakSet[Any] = WeakSet()  # loaders that the program does not pin

    @functools.wraps(original)
    def __init__(self: Any, loader: Any) -> None:
        if not loader.pin_memory or loader in ours:
            ours.add(loader)
            loader.pin_memory = torch.cuda.is_initialized()
        if loader.pin_memory:
            confirmation.took(_KEY, f"batches are in pinned memory; the program passed pin_memory={loader not in ours}")
        else:
            confirmation.refused(_KEY, "the program begins to load batches before it uses CUDA")
        original(self, loader)

    hooks.install(iterator, "__init__", __init__)
