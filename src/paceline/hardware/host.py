"""This host: its cores and memory, how much of both this process can use, and the CPU time used so far.

    allowed cores    = min(cores in the process's affinity, CPU quota of its control groups)
    memory limit     = min(MemTotal, memory limit of its control groups)
    available memory = min(MemAvailable, memory.max - (memory.current - inactive_file))

Available memory can be used without swapping and before the kernel kills a process. The kernel reclaims the inactive
page cache of a group first, so this cache counts as available. Source: Linux proc(5) and admin-guide/cgroup-v2. All
values come from text files, so a test can replace the host with a tree of files.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from paceline.hardware.cgroup import ControlGroup, cpu_group, memory_group
from paceline.hardware.operating_system import HostFiles, LocalFiles

_USED = {1: "memory.usage_in_bytes", 2: "memory.current"}
_COLD = {1: "total_inactive_file", 2: "inactive_file"}  # inactive page cache, which the kernel reclaims first
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True, kw_only=True)
class Host:
    """Properties of this host. A property that could not be read is None, and `unavailable` gives the reason."""

    name: str
    kernel: str
    cpu_model: str | None
    cores: int  # logical cores online
    affinity: tuple[int, ...]  # numbers of the cores on which this process may run
    cpu_quota_cores: float | None  # None: no quota
    memory_total_bytes: int | None
    memory_limit_bytes: int | None  # the control group's limit; without one, the memory of the host
    unavailable: dict[str, str]

    @property
    def allowed_cores(self) -> float:
        """The most CPU cores that this process can use; a quota can make this a fraction, such as 1.5."""
        return min(float(len(self.affinity)), self.cpu_quota_cores or float("inf"))


def this_host(files: HostFiles | None = None) -> Host:
    """Read the properties of this host. `files` replaces its /proc and /sys, for tests."""
    files = files or LocalFiles()
    affinity = tuple(sorted(files.affinity()))
    total = memory_total_bytes(files.read("/proc/meminfo"))
    model = _cpu_model(files.read("/proc/cpuinfo"))
    return Host(
        name=(files.read("/proc/sys/kernel/hostname") or "localhost").strip(),
        kernel=(files.read("/proc/sys/kernel/osrelease") or "").strip(),
        cpu_model=model,
        cores=_count_cores(files.read("/sys/devices/system/cpu/online")) or len(affinity),
        affinity=affinity,
        cpu_quota_cores=cpu_group(files).limit,
        memory_total_bytes=total,
        memory_limit_bytes=_least(total, memory_group(files).limit),
        unavailable=_reasons(cpu_model=model, memory_total_bytes=total),
    )


def memory_total_bytes(meminfo: str | None) -> int | None:
    """Return the memory of the host in bytes from the text of /proc/meminfo, or None if the text has no MemTotal."""
    for line in (meminfo or "").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return None


def cpu_flags(files: HostFiles | None = None) -> frozenset[str]:
    """Return the instruction sets of the CPU by the kernel's names, such as avx512_bf16; empty if unknown."""
    for line in ((files or LocalFiles()).read("/proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def _reasons(*, cpu_model: str | None, memory_total_bytes: int | None) -> dict[str, str]:
    reasons = {}
    if cpu_model is None:
        reasons["cpu_model"] = "/proc/cpuinfo does not name the CPU model"
    if memory_total_bytes is None:
        reasons["memory_limit_bytes"] = "/proc/meminfo could not be read"
    return reasons


def _cpu_model(cpuinfo: str | None) -> str | None:
    for line in (cpuinfo or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "cpu model") and value.strip():
            return value.strip()
    return None


def _count_cores(online: str | None) -> int:
    """Return the number of cores in a list such as ``0-3,8``."""
    count = 0
    for part in (online or "").strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            count += int(last or first) - int(first) + 1
    return count


def _least(total: int | None, limit: float | None) -> int | None:
    known = [each for each in (total, limit) if each is not None]
    return int(min(known)) if known else None


# ---------------------------------------------------------------------------------------------------------- free memory


def available_bytes(files: HostFiles) -> float | None:
    """Return the bytes of available memory, or None if neither the host nor a control group reports them."""
    found = [left for left in (_of_host(files), _of_group(files, memory_group(files))) if left is not None]
    return min(found, default=None)


def _of_host(files: HostFiles) -> float | None:
    kib = _fields(files.read("/proc/meminfo")).get("MemAvailable:")
    return 1024.0 * kib if kib is not None else None


def unreclaimable_bytes(files: HostFiles, group: ControlGroup) -> int | None:
    """Return the bytes of memory that a group cannot give back, or None if its limit or usage is unknown."""
    if group.limit_folder is None:
        return None
    used = (files.read(f"{group.limit_folder}/{_USED[group.version]}") or "").strip()
    cold = _fields(files.read(f"{group.limit_folder}/memory.stat")).get(_COLD[group.version], 0)
    return max(0, int(used) - cold) if used.isdigit() else None


def _of_group(files: HostFiles, group: ControlGroup) -> float | None:
    held = unreclaimable_bytes(files, group)
    return None if held is None or group.limit is None else max(0.0, group.limit - held)


def _fields(text: str | None) -> dict[str, int]:
    """Parse lines of a name and a whole number; return the numbers by name."""
    rows = [line.split() for line in (text or "").splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) >= 2 and row[1].isdigit()}


# ------------------------------------------------------------------------------------------------------------- CPU time


def host_busy_s() -> float:
    """Return the CPU seconds that all processes have used since the host started, plus the stolen seconds.

    On a virtual machine, stolen time is the time in which a process was ready to run but another guest had the core.
    """
    with open("/proc/stat", encoding="ascii") as file:
        fields = [int(x) for x in file.readline().split()[1:]]
    user, nice, system = fields[:3]
    stolen = fields[7] if len(fields) > 7 else 0
    return (user + nice + system + stolen) / _TICKS
