"""The batch time of the program's own loader, and the resident memory before the first step.

The iterator that was used last is asked for more batches without pause. This gives the loader's throughput while the
training computes nothing. The CPU time per batch includes threads and worker processes.
"""

from __future__ import annotations

import functools
import os
import time
from typing import Any

_MOST = 24
_LIMIT_S = 4.0
_SIDE, _PRODUCTS = 256, 250  # some tens of ms of small operators, similar to a training step
_TURNS, _SETTLING = 21, 9
_state: dict[str, Any] = {"last": None}


def patch_torchs(torch: Any) -> None:
    """Make torch's DataLoader record the iterator that was used last."""
    from torch.utils.data import dataloader

    _remember(dataloader._BaseDataLoaderIter)


def patch_ours(module: Any) -> None:
    """Make the loader of `paceline.data` record the iterator that was used last."""
    _remember(module.LoaderIterator)


def _remember(kind: Any) -> None:
    original = kind.__next__

    @functools.wraps(original)
    def following(self: Any) -> Any:
        _state["last"] = self
        return original(self)

    kind.__next__ = following


def timed(torch: Any) -> dict[str, Any] | None:
    """Measure the times of further batches from the iterator that was used last; None if no loader was used.

    Returns:
        ``count`` batches; ``wall_s`` of each batch; mean ``cpu_s`` per batch; ``workers``; ``work_s``, the time of some
        small matrix products; and ``beside_s``, the increase of that time when a batch is loaded with each repetition.
    """
    last = _state["last"]
    if last is None:
        return None
    following = type(last).__next__
    walls: list[float] = []
    begun, busy = time.monotonic(), _cpu_s()
    while len(walls) < _MOST and time.monotonic() - begun < _LIMIT_S:
        at = time.perf_counter()
        try:
            following(last)
        except StopIteration:
            break
        walls.append(time.perf_counter() - at)
    cpu_s = (_cpu_s() - busy) / len(walls) if walls else None
    work_s, beside_s = _beside(torch, lambda: following(last))
    workers = int(getattr(last, "_num_workers", 0))
    told = {"count": len(walls), "wall_s": walls, "cpu_s": cpu_s, "workers": workers}
    return {**told, "work_s": work_s, "beside_s": beside_s}


def _beside(torch: Any, following: Any) -> tuple[float, float | None]:
    """Return the time of some matrix products, and its increase if a batch is loaded too (None without batches)."""
    matrix = torch.rand(_SIDE, _SIDE)

    def work() -> float:
        at = time.perf_counter()
        for _ in range(_PRODUCTS):
            matrix @ matrix
        return time.perf_counter() - at

    alone = sorted(work() for _ in range(_TURNS))[_TURNS // 2]
    both: list[float] = []
    try:
        for _ in range(_TURNS + _SETTLING):
            at = time.perf_counter()
            following()
            work()
            both.append(time.perf_counter() - at)
    except StopIteration:
        pass
    settled = sorted(both[_SETTLING:])
    return alone, settled[len(settled) // 2] - alone if settled else None


def _cpu_s() -> float:
    now = os.times()
    return time.process_time() + now.children_user + now.children_system


def resident_bytes() -> dict[str, int | None]:
    """Return the resident memory of the process in bytes: current (``now``) and highest (``peak``)."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file if line.startswith("Vm"))
        return {"now": _kib(fields["VmRSS"]), "peak": _kib(fields["VmHWM"])}
    except (OSError, KeyError, ValueError):
        return {"now": None, "peak": None}


def _kib(text: str) -> int:
    return 1024 * int(text.split(maxsplit=1)[0])
