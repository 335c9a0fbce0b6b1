"""What is this host, and how much of it is ours?

    allowed cores = min(cores in our affinity, CPU quota of our control groups)
    memory limit  = min(MemTotal, memory limit of our control groups)

All of it from text files, so that a tree of files can stand in for a host.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.hardware.cgroup import cpu_group, memory_group
from paceline.hardware.files import HostFiles, LocalFiles


@dataclass(frozen=True, kw_only=True)
class Host:
    """The host we run on. What could not be read is None, and `unavailable` says why."""

    name: str
    kernel: str
    cpu_model: str | None
    cores: int  # logical cores online
    affinity: tuple[int, ...]  # numbers of the cores we may run on
    cpu_quota_cores: float | None  # None: no quota
    memory_total_bytes: int | None
    memory_limit_bytes: int | None  # what we may use: a control group's limit, else all there is
    unavailable: dict[str, str]

    @property
    def allowed_cores(self) -> float:
        """How many cores of CPU time we get at most; a quota makes it a fraction, such as 1.5."""
        return min(float(len(self.affinity)), self.cpu_quota_cores or float("inf"))


def this_host(files: HostFiles | None = None) -> Host:
    """Read the facts of the host; `files` may stand in for its /proc and /sys."""
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
    """Return the memory of the host in bytes, from the text of /proc/meminfo; None where it does not say."""
    for line in (meminfo or "").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return None


def cpu_flags(files: HostFiles | None = None) -> frozenset[str]:
    """Return the instruction sets of the processor as the kernel names them, such as avx512_bf16; none: not known."""
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
    """Return how many cores a list such as ``0-3,8`` names."""
    count = 0
    for part in (online or "").strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            count += int(last or first) - int(first) + 1
    return count


def _least(total: int | None, limit: float | None) -> int | None:
    known = [each for each in (total, limit) if each is not None]
    return int(min(known)) if known else None
