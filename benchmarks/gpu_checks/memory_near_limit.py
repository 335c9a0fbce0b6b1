"""Is memory that is nearly full found?"""

from __future__ import annotations

from typing import Any

from _watched import finding


def check() -> dict[str, Any]:
    return finding("memory.py", "MEM001", "full")
