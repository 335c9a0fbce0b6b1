"""Is it found that tiny kernels one after the other are bound by their launch?"""

from __future__ import annotations

from typing import Any

from _watched import finding


def check() -> dict[str, Any]:
    return finding("launch_bound.py", "COMP002")
