"""Is it found that a program that asks for a number after every gradient stalls?"""

from __future__ import annotations

from typing import Any

from _watched import finding


def check() -> dict[str, Any]:
    return finding("sync_stall.py", "COMP003")
