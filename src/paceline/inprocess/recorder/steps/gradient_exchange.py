"""Read the times that ``DistributedDataParallel`` measures: how long gradient exchange lasts beyond the backward pass.

DDP records when the gradients of a backward pass are computed and when their reduction has ended, in the first ten
passes and then at a sampling rate. The difference is time spent waiting for the exchange. On a CPU the rate is raised
to one pass in ten; on a GPU DDP's rate stays unchanged.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Any

_FIRST = 5  # forward passes before the times are representative
_ALWAYS = 12  # number of first forward passes that DDP times
_RATE = 10
_MOST_READ = 256  # stored times per module
_MOST_MODULES = 16

_read: dict[int, _Times] = {}


class _Times:
    """Times of one module's gradient exchanges, in ns."""

    def __init__(self) -> None:
        self.calls = 0
        self.last: Any = None  # iteration of the last reading
        self.searches = False  # whether each pass searches for unused parameters
        self.unused = 0  # passes with unused parameters
        self.found: deque[tuple[int, int, int]] = deque(maxlen=_MOST_READ)  # computing, exchange, exposed exchange


def look(module: Any) -> None:
    """Read the exchange times of a module if a reading is due. Called when a forward pass of the module starts."""
    times = _read.get(id(module))
    if times is None:
        if len(_read) >= _MOST_MODULES:
            return
        times = _read[id(module)] = _Times()
        _raise_rate(module)
    times.calls += 1
    if times.calls < _FIRST or (times.calls > _ALWAYS and times.calls % _RATE != 2):
        return
    told = module._get_ddp_logging_data() if hasattr(module, "_get_ddp_logging_data") else {}
    computing, exchange = told.get("backward_compute_time"), told.get("backward_comm_time")
    iteration, overlap = told.get("iteration"), told.get("backward_compute_comm_overlap_time", 0)
    if iteration == times.last or not computing or not exchange:
        return
    times.last = iteration
    times.searches = bool(getattr(module, "find_unused_parameters", False))
    times.unused += bool(told.get("unused_parameter_size"))
    times.found.append((computing, exchange, max(0, exchange - overlap)))


def _raise_rate(module: Any) -> None:
    """Make DDP time one pass in ten, unless DDP would then print each time or synchronise a GPU."""
    prints = os.environ.get("TORCH_DISTRIBUTED_DEBUG", "OFF").upper() != "OFF"
    if (
        not prints
        and getattr(module, "device_type", "") == "cpu"
        and hasattr(module, "_set_ddp_runtime_logging_sample_rate")
    ):
        module._set_ddp_runtime_logging_sample_rate(_RATE)


def as_json() -> list[dict[str, float | int]]:
    """Return the mean exchange times of each module, in seconds."""
    return [
        {
            "count": len(found),
            "backward_s": sum(one[0] for one in found) / len(found) / 1e9,
            "exchange_s": sum(one[1] for one in found) / len(found) / 1e9,
            "exposed_s": sum(one[2] for one in found) / len(found) / 1e9,
            "searches_unused": times.searches,
            "unused_count": times.unused,
        }
        for times in list(_read.values())
        if (found := list(times.found))
    ]


def forget() -> None:
    """Drop the recorded exchange times, in a forked process."""
    _read.clear()
