"""The use of the host while the program ran: means of readings, separately for the program and other programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paceline.record.run import JsonObject, Run

_FULL = 0.85  # from this share of busy cores on, threads may have to wait for other programs


@dataclass(frozen=True, kw_only=True)
class HostUse:
    """The use of rank 0's host. Numbers of cores are CPU seconds per second; None means not measured."""

    allowed_cores: float | None = None  # cores that the program may use, by affinity and CPU quota
    # cores of the affinity, ignoring the quota; the readings of other programs refer to them
    cores: float | None = None
    own_cores: float | None = None
    other_cores: float | None = None
    memory_limit_bytes: float | None = None
    own_rss_bytes: float | None = None  # maximum; shared pages count once for each process
    available_bytes: float | None = None  # minimum
    swap_pages_per_s: float | None = None
    io_pressure: float | None = None  # share of time in which at least one task waited for storage
    throttled: float | None = None  # share of time in which a CPU quota stopped the program
    samples: int = 0

    @property
    def idle_cores(self) -> float | None:
        """Number of cores that no program used, or None if unknown."""
        if self.allowed_cores is None or self.own_cores is None:
            return None
        free = (self.cores or self.allowed_cores) - self.own_cores - (self.other_cores or 0.0)
        return max(0.0, min(self.allowed_cores - self.own_cores, free))

    @property
    def others_share(self) -> float:
        """Share of the cores that other programs used; 0 if a CPU quota limits the program while cores are free."""
        if not self.cores or self.allowed_cores is None or self.other_cores is None:
            return 0.0
        full = (self.own_cores or 0.0) + self.other_cores >= _FULL * self.cores
        return self.other_cores / self.cores if full or self.cores <= self.allowed_cores else 0.0


def host_use(run: Run) -> HostUse:
    """Return the use of rank 0's host, or of the host with most readings if rank 0's host has none."""
    hosts = [rank.host for rank in run.ranks if run.gauges.get(rank.host)]
    host = hosts[0] if hosts else max(run.gauges, key=lambda name: len(run.gauges[name]), default="")
    lines = run.gauges.get(host, ())
    if not lines:
        return HostUse()
    head: JsonObject = next((x for x in lines if x.get("kind") == "header"), {})
    readings = while_stepping(_on_host(run, host), [x for x in lines if x.get("kind") == "host"])
    return HostUse(
        allowed_cores=_number(head.get("allowed_cores")),
        cores=float(len(head["affinity"])) if head.get("affinity") else _number(head.get("allowed_cores")),
        own_cores=mean_reading(readings, "own_cpu_cores"),
        other_cores=mean_reading(readings, "other_cpu_cores"),
        memory_limit_bytes=_number(head.get("memory_limit_bytes")),
        own_rss_bytes=max(values_of(readings, "own_rss_bytes"), default=None),
        available_bytes=min(values_of(readings, "memory_available_bytes"), default=None),
        swap_pages_per_s=mean_reading(readings, "swap_in_pages_per_s"),
        io_pressure=mean_reading(readings, "pressure_io_some_share"),
        throttled=mean_reading(readings, "cgroup_throttled_share"),
        samples=len(readings),
    )


def _on_host(run: Run, host: str) -> Run:
    """Return a run with the ranks of one host only, because clocks of other hosts do not match the host's readings."""
    own = [rank for rank in run.ranks if rank.host == host]
    return replace(run, ranks=own) if own else run


def while_stepping(run: Run, readings: Sequence[JsonObject]) -> Sequence[JsonObject]:
    """Return the readings whose interval lies between the first and the last step of any rank.

    The ranks must be on the host of the readings, because each host has its own clock. A reading describes the interval
    before it. If no interval lies between these steps, the readings taken between them are returned, or else all
    readings.
    """
    begins = [r.meta["first_ns"] for r in run.ranks if r.meta.get("first_ns")]
    ends = [int(r.steps["end_ns"][-1]) for r in run.ranks if len(r.steps)]
    if not begins or not ends:
        return readings
    slack = 0.25e9
    inside = [
        x
        for x in readings
        if x["time_ns"] - 1e9 * x.get("interval_s", 1.0) >= min(begins) - slack and x["time_ns"] <= max(ends) + slack
    ]
    return inside or [x for x in readings if min(begins) <= x["time_ns"] <= max(ends)] or readings


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def mean_reading(readings: Sequence[JsonObject], key: str) -> float | None:
    """Return the mean of one value over the readings that have it, or None if no reading has it."""
    values = values_of(readings, key)
    return float(np.mean(values)) if values else None


def values_of(readings: Sequence[JsonObject], key: str) -> list[float]:
    """Return one value of each reading that has this value."""
    return [float(x[key]) for x in readings if isinstance(x.get(key), (int, float))]
