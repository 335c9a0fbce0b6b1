"""The sampling session: it writes the header and the lines of a gauge file.

A session holds the open file, the readers for this host, and the last counters.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.hardware.host import Host, this_host
from paceline.hardware.operating_system import HostFiles
from paceline.monitor.gauges import host as gauges
from paceline.monitor.gauges.clock import Clock
from paceline.monitor.gauges.lines import LineFile
from paceline.monitor.gauges.nvidia import GpuReader
from paceline.monitor.gauges.ranks import RankFolders
from paceline.monitor.gauges.tree import ProcessTree
from paceline.record import layout

FindGpus = Callable[[], tuple[GpuReader | None, dict[str, str]]]
"""A function that returns the GPUs of this host, or None and the reason under the key ``gpus``."""

_LEAST_INTERVAL_S = 0.05  # a shorter interval has too few clock ticks of 10 ms
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel


class Session:
    """Writes the header when created, then one line per sample."""

    def __init__(
        self,
        run_dir: Path,
        roots: Sequence[int],
        files: HostFiles,
        clock: Clock,
        find_gpus: FindGpus,
    ) -> None:
        """Open the file, read the first counters, and write the header.

        Raises:
            OSError: The file cannot be written, or another sampler writes to it.
        """
        self._clock = clock
        self._host = this_host(files)
        self._lines = LineFile(run_dir / layout.GAUGES_DIR / f"{self._host.name}.jsonl")
        self._reader = gauges.HostReader(files)
        self._tree = ProcessTree(files, roots, keeper=os.getpid())
        self._ranks = RankFolders(run_dir / layout.RANKS_DIR, self._host.name, clock.unix_s())
        self._pids_known = _sees_all_pids()
        try:
            self._begin(find_gpus)
        except BaseException:
            self._lines.close()
            raise

    def _begin(self, find_gpus: FindGpus) -> None:
        self._before = self._snapshot()
        self._gpus, no_gpus = find_gpus()
        self._fixed_reasons = {
            **self._host.unavailable,
            **gauges.missing(self._before, self._host, self._reader.oom_source),
            **no_gpus,
        }
        facts = None if self._gpus is None else self._gpus.facts()
        self._read_gpus(self._before)  # the first reading shows which values this driver does not offer
        self._told = self._unavailable()
        self._lines.append(_header(self._host, self._reader.oom_source, facts, self._told))

    def sample(self) -> dict[str, Any] | None:
        """Take a sample, append its line and return the line; None if the last sample is too recent.

        Raises:
            OSError: The line could not be written.
        """
        if self._clock.monotonic_ns() - self._before.time_ns < _LEAST_INTERVAL_S * 1e9:
            return None
        self._tree.add_roots(self._ranks.new_pids())
        after = self._snapshot()
        line = {
            "kind": "host",
            "time_ns": after.time_ns,
            "unix_s": round(self._clock.unix_s(), 3),
            **gauges.readings(self._before, after, self._host),
            "gpus": self._read_gpus(after),
            "sampler_cpu_s": round(self._clock.own_cpu_s(), 4),
        }
        self._before = after
        self._lines.append(line)
        self._tell_what_ended()
        return line

    def close(self) -> None:
        """Close the file."""
        self._lines.close()

    def _snapshot(self) -> gauges.HostCounters:
        tree = self._tree.walk()
        return self._reader.snapshot(self._clock.monotonic_ns(), tree)

    def _read_gpus(self, now: gauges.HostCounters) -> list[dict[str, Any]] | None:
        if self._gpus is None:
            return None
        return self._gpus.read(self._clock.monotonic_ns(), now.tree.pids, self._pids_known)

    def _unavailable(self) -> dict[str, str]:
        return self._fixed_reasons | (self._gpus.unavailable if self._gpus else {})

    def _tell_what_ended(self) -> None:
        """Append an ``unavailable`` line with the values that have become unreadable since the header."""
        new = {key: why for key, why in self._unavailable().items() if key not in self._told}
        if new:
            self._told |= new
            self._lines.append({"kind": "unavailable", "time_ns": self._before.time_ns, "unavailable": new})


def _header(
    host: Host, oom_source: str, gpus: list[dict[str, Any]] | None, unavailable: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "schema": layout.SCHEMA_VERSION,
        "kind": "header",
        "host": host.name,
        "kernel": host.kernel,
        "cpu_model": host.cpu_model,
        "cores": host.cores,
        "affinity": list(host.affinity),
        "cpu_quota_cores": host.cpu_quota_cores,
        "allowed_cores": host.allowed_cores,
        "memory_total_bytes": host.memory_total_bytes,
        "memory_limit_bytes": host.memory_limit_bytes,
        "oom_kills_from": oom_source,
        "gpus": gpus,
        "unavailable": unavailable,
    }


def _sees_all_pids() -> bool:
    """Return whether this process is outside any container, so that the driver's process numbers are valid here.

    Inside a container, drivers give the host's or the container's process numbers, depending on their version
    (NVIDIA/nvidia-docker#1483, NVIDIA/open-gpu-kernel-modules#614).
    """
    try:
        return os.readlink("/proc/self/ns/pid") == _INITIAL_PID_NAMESPACE
    except OSError:
        return False
