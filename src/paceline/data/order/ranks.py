"""The rank of this process, the number of ranks on this host, and the share of the host that a rank may use.

Ranks tell each other through the store of torch.distributed how many they are on a host, and in a loop. No rank waits
for another longer than a few seconds, so a loader that only one rank uses still works.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from paceline.hardware.host import this_host
from paceline.hardware.operating_system import HostFiles

_log = logging.getLogger("paceline.data")
_WAIT_S = 3.0  # for other ranks, once per process and per loader
_POLL_S = 0.02
_RANKS, _LOOPS = "paceline/ranks", "paceline/loops"
_OF_MEMORY = 16  # a loader takes this part of the memory there is, at most
_LEAST_BYTES = 512 << 20  # unless that is less
# Set by the launcher: ranks of this host.
_VARIABLES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE")


def ranks_on_host() -> int:
    """Return how many ranks share this host: as the launcher says, else as the ranks have told each other."""
    for name in _VARIABLES:
        told = os.environ.get(name, "")
        if told.isdigit():
            return max(1, int(told))
    return _of_slurm() or _of_store() or 1


def begin_loop(name: str) -> Callable[[], int | None]:
    """Tell the other ranks that this one begins a loop.

    Args:
        name: Of the loop, the same on all ranks.

    Returns:
        A function that waits up to 3 s for the other ranks, and returns the number of ranks that have begun the loop.
        It returns None if there is only one rank or no store.
    """
    store, world = _store()
    if store is None:
        return lambda: None
    key = f"{_LOOPS}/{name}"
    with suppress(Exception):
        store.add(key, 1)

    def begun() -> int | None:
        try:
            return _counted(lambda: int(store.add(key, 0)), world)
        except Exception:  # the group has ended
            return None

    return begun


def tell_missing_ranks(begun: int | None, world: int) -> None:
    """Warn if other ranks have not begun a loop by its end: their samples were not read."""
    if begun is not None and begun < world:
        _log.warning(
            "only %d of %d ranks have read this loop, so only %d/%d of the samples were read. To validate on one rank, "
            "make the loader with rank=0, world=1",
            begun, world, begun, world,
        )  # fmt: skip


def _of_slurm() -> int | None:
    """Return the tasks of a step of Slurm on this node, from a list such as ``4(x2),3``."""
    listed, node = os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""), os.environ.get("SLURM_NODEID", "0")
    counts: list[int] = []
    for part in listed.split(","):
        tasks, _, times = part.partition("(x")
        times = times.rstrip(")") or "1"
        if not tasks.isdigit() or not times.isdigit():
            return None
        counts += [int(tasks)] * int(times)
    number = int(node) if node.isdigit() else 0
    found = counts[number] if number < len(counts) else None
    return found if found is not None and sum(counts) > 1 else None


def _of_store() -> int | None:
    """Return how many ranks of the process group have the name of this host."""
    store, world = _store()
    if store is None:
        return None
    try:
        return _told(id(store), world)
    except Exception:  # the group has ended
        return None


@cache
def _told(of: int, world: int) -> int:
    """Tell the host of this rank once to a store, wait for the others, and count the ranks of this host."""
    store, _ = _store()
    own = f"{_RANKS}/{socket.gethostname()}"
    store.add(own, 1)
    store.add(_RANKS, 1)
    _counted(lambda: int(store.add(_RANKS, 0)), world)
    return max(1, min(world, int(store.add(own, 0))))


def _counted(count: Callable[[], int], wanted: int) -> int:
    """Return a count when it is as large as wanted, or after a few seconds."""
    end = time.monotonic() + _WAIT_S
    while (found := count()) < wanted and time.monotonic() < end:
        time.sleep(_POLL_S)
    return found


def _store() -> tuple[Any, int]:
    """Return the store of the process group and the number of ranks; None where there is no group of several ranks."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    try:
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return None, 1
        world = distributed.get_world_size()
        return (distributed.distributed_c10d._get_default_store(), world) if world > 1 else (None, 1)
    except Exception:  # a torch that keeps its store elsewhere
        return None, 1


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


def share_of_host(files: HostFiles | None = None) -> Share:
    """Return what this rank may use: the cores it may run on, or pay for, and memory, shared among the ranks here."""
    host, ranks = this_host(files), ranks_on_host()
    cores = max(1, int(host.allowed_cores / ranks))
    memory = (host.memory_limit_bytes or 0) // (_OF_MEMORY * ranks)
    return Share(
        ranks=ranks, cores=cores, spare_cores=float(max(0, host.cores - cores)), memory_bytes=max(_LEAST_BYTES, memory)
    )
