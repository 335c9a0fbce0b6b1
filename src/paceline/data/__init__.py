"""Sharded datasets and a loader that keeps the device fed: `docs/how-to/data.md`.

from paceline.data import Loader, RandomResizedCrop
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.data.audio import decode_audio
    from paceline.data.crops import CenterCrop, RandomResizedCrop
    from paceline.data.loader import Loader
    from paceline.data.sharded import ShardedDataset
    from paceline.data.tokens import TokenDataset
    from paceline.data.writer import Writer

__all__ = ["CenterCrop", "Loader", "RandomResizedCrop", "ShardedDataset", "TokenDataset", "Writer", "decode_audio"]
_MODULES = {
    "CenterCrop": "crops",
    "Loader": "loader",
    "RandomResizedCrop": "crops",
    "ShardedDataset": "sharded",
    "TokenDataset": "tokens",
    "Writer": "writer",
    "decode_audio": "audio",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for, and nothing before."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
