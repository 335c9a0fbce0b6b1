"""The calling stack in a form that costs little to store."""

from __future__ import annotations

from types import FrameType
from typing import Any

_FRAMES_DEEP = 24


def stack(frame: FrameType | None) -> list[tuple[Any, int]]:
    """Return the calling stack as (code object, line), innermost first."""
    found: list[tuple[Any, int]] = []
    while frame is not None and len(found) < _FRAMES_DEEP:
        found.append((frame.f_code, frame.f_lineno or frame.f_code.co_firstlineno))  # an instruction may have no line
        frame = frame.f_back
    return found
