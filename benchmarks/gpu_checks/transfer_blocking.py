"""Is it found that copies from pageable memory that the GPU waits for are found?"""

from __future__ import annotations

from typing import Any

from _watched import finding


def check() -> dict[str, Any]:
    return finding("transfer_blocking.py", "XFER001")
