"""The rank of this process and the number of ranks: from the process group, or before that from the launcher."""

from __future__ import annotations

import os
from typing import Any


def rank_and_world(torch: Any) -> tuple[int, int]:
    """Return the rank and the number of ranks. ``torch.multiprocessing.spawn`` sets no environment variables."""
    group = torch.distributed
    if group.is_available() and group.is_initialized():
        return group.get_rank(), group.get_world_size()
    return int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)
