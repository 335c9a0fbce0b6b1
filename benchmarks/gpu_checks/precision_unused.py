"""Is it found that fp32 products on a card with faster formats are found?"""

from __future__ import annotations

from typing import Any

from _watched import finding


def check() -> dict[str, Any]:
    return finding("precision_unused.py", "COMP004")
