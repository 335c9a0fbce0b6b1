"""The rank of this process and the number of ranks, from the process group or else from the launcher's variables."""

from __future__ import annotations

import os
from typing import Any


def rank_and_world(torch: Any) -> tuple[int, int]:
    """Return the rank and the number of ranks; (0, 1) without a process group and without a launcher."""
    group = torch.distributed
    if group.is_available() and group.is_initialized():
        return group.get_rank(), group.get_world_size()
    return int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)
