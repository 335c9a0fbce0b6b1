"""Sharded datasets, and a loader that makes batches ahead of the training: `docs/how-to/data.md`.

from paceline.data import Loader, RandomResizedCrop
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.data.convert.writer import Writer
    from paceline.data.loader.loader import Loader
    from paceline.data.loader.mix import Mix
    from paceline.data.reading.audio import decode_audio
    from paceline.data.reading.crops import CenterCrop, RandomResizedCrop
    from paceline.data.reading.file_dataset import FileDataset
    from paceline.data.reading.sharded import ShardedDataset
    from paceline.data.reading.token_dataset import TokenDataset

__all__ = [
    "CenterCrop",
    "FileDataset",
    "Loader",
    "Mix",
    "RandomResizedCrop",
    "ShardedDataset",
    "TokenDataset",
    "Writer",
    "decode_audio",
]
_MODULES = {
    "CenterCrop": "reading.crops",
    "FileDataset": "reading.file_dataset",
    "Loader": "loader.loader",
    "Mix": "loader.mix",
    "RandomResizedCrop": "reading.crops",
    "ShardedDataset": "reading.sharded",
    "TokenDataset": "reading.token_dataset",
    "Writer": "convert.writer",
    "decode_audio": "reading.audio",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that importing this package is fast."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
