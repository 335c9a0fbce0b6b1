"""Is memory that is torn into pieces that fit nothing found?"""

from __future__ import annotations

from typing import Any

from _watched import finding


def check() -> dict[str, Any]:
    return finding("memory.py", "MEM003", "torn")
