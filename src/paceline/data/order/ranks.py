"""Which rank is this process, and how much of this host may it use?"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from paceline.data.order.rank_counts import ranks_here
from paceline.hardware.host import this_host
from paceline.hardware.operating_system import HostFiles

_OF_MEMORY = 16  # a loader takes this part of the memory there is, at most
_LEAST_BYTES = 512 << 20  # unless that is less


@dataclass(frozen=True, kw_only=True)
class Share:
    """What of this host is this rank's."""

    cores: int
    spare_cores: float  # of the host, that are not ours: others may be busy on them
    memory_bytes: int  # that a loader may take unless it is told otherwise
    ranks: int = 1  # of this host


def rank_and_world() -> tuple[int, int]:
    """Return the rank and the number of ranks, as torch.distributed knows them, else the launcher's environment."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return 0, 1


def share_here(files: HostFiles | None = None) -> Share:
    """Return what this rank may use: the cores it may run on, or pay for, and memory, shared among the ranks here."""
    host, ranks = this_host(files), ranks_here()
    cores = max(1, int(host.allowed_cores / ranks))
    memory = (host.memory_limit_bytes or 0) // (_OF_MEMORY * ranks)
    return Share(
        ranks=ranks, cores=cores, spare_cores=float(max(0, host.cores - cores)), memory_bytes=max(_LEAST_BYTES, memory)
    )
