"""One training loop on one device or on any arrangement of many: `docs/how-to/train.md`.

from paceline.train import Engine
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.core.layout import Layout
    from paceline.train.engine import Engine, Step
    from paceline.train.parallel.cp import positions
    from paceline.train.recipe import Recipe

__all__ = ["Engine", "Layout", "Recipe", "Step", "positions"]
_MODULES = {
    "Engine": "paceline.train.engine",
    "Layout": "paceline.core.layout",
    "Recipe": "paceline.train.recipe",
    "Step": "paceline.train.engine",
    "positions": "paceline.train.parallel.cp",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import paceline.train` does not import torch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_MODULES[name]), name)
