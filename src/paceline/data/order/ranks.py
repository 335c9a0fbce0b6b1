"""The rank of this process, the number of ranks on this host, and the share of the host that a rank may use.

Through the store of torch.distributed, ranks exchange how many share a host and how many have begun a loop. A rank
waits at most a few seconds for others, so a loader that only one rank uses still works.
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
_WAIT_S = 3.0  # for other ranks, once per process and once per loop
_POLL_S = 0.02
_RANKS, _LOOPS = "paceline/ranks", "paceline/loops"
_OF_MEMORY = 16  # by default a loader uses at most 1/16 of the host's memory
_LEAST_BYTES = 512 << 20  # but at least this much
# Launchers set these variables to the number of ranks on this host.
_VARIABLES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE")


def ranks_on_host() -> int:
    """Return the number of ranks on this host, from the launcher's variables, else counted by the ranks, else 1."""
    for name in _VARIABLES:
        told = os.environ.get(name, "")
        if told.isdigit():
            return max(1, int(told))
    return _of_slurm() or _of_store() or 1


def begin_loop(name: str) -> Callable[[], int | None]:
    """Announce to the other ranks that this rank begins a loop.

    Args:
        name: The name of the loop, the same on all ranks.

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
    """Log a warning if some ranks have not begun a loop by its end, as their samples were not read.

    Args:
        begun: The number of ranks that have begun the loop; None if unknown.
        world: The number of ranks.
    """
    if begun is not None and begun < world:
        _log.warning(
            "only %d of %d ranks have read this loop, so only %d/%d of the samples were read. To validate on one rank, "
            "make the loader with rank=0, world=1",
            begun, world, begun, world,
        )  # fmt: skip


def _of_slurm() -> int | None:
    """Return the number of tasks of a Slurm step on this node, from a list such as ``4(x2),3``; None if unknown."""
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
    """Return how many ranks of the process group have this host's name; None without a group of several ranks."""
    store, world = _store()
    if store is None:
        return None
    try:
        return _told(id(store), world)
    except Exception:  # the group has ended
        return None


@cache
def _told(of: int, world: int) -> int:
    """Publish this rank's host in the store once, wait for other ranks, and return the number of ranks on the host."""
    store, _ = _store()
    own = f"{_RANKS}/{socket.gethostname()}"
    store.add(own, 1)
    store.add(_RANKS, 1)
    _counted(lambda: int(store.add(_RANKS, 0)), world)
    return max(1, min(world, int(store.add(own, 0))))


def _counted(count: Callable[[], int], wanted: int) -> int:
    """Poll a count until it reaches `wanted` or `_WAIT_S` has passed, and return the count."""
    end = time.monotonic() + _WAIT_S
    while (found := count()) < wanted and time.monotonic() < end:
        time.sleep(_POLL_S)
    return found


def _store() -> tuple[Any, int]:
    """Return the store of the process group and the number of ranks; None and 1 without a group of several ranks."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    try:
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return None, 1
        world = distributed.get_world_size()
        return (distributed.distributed_c10d._get_default_store(), world) if world > 1 else (None, 1)
    except Exception:  # another version of torch may store it elsewhere
        return None, 1


@dataclass(frozen=True, kw_only=True)
class Share:
    """The part of this host's resources that this rank may use."""

    cores: int
    spare_cores: float  # the other cores of the host, which may be busy
    memory_bytes: int  # the default memory of a loader
    ranks: int = 1  # on this host


def rank_and_world() -> tuple[int, int]:
    """Return the rank and the number of ranks from torch.distributed, else from the launcher's variables, else 0, 1."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return 0, 1


def share_of_host(files: HostFiles | None = None) -> Share:
    """Return the cores and the memory that this rank may use: the host's allowance divided by its ranks."""
    host, ranks = this_host(files), ranks_on_host()
    cores = max(1, int(host.allowed_cores / ranks))
    memory = (host.memory_limit_bytes or 0) // (_OF_MEMORY * ranks)
    return Share(
        ranks=ranks, cores=cores, spare_cores=float(max(0, host.cores - cores)), memory_bytes=max(_LEAST_BYTES, memory)
    )
