"""Rates and shares of the host's resources, computed from two snapshots of its counters.

    busy share of cores = busy ticks / all ticks
    other cores         = busy share * cores that this process may use - own CPU time / time

A rate is the difference of two counters divided by the time between them. A value that the kernel does not report is
None, never 0, and `missing` gives the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from paceline.hardware.cgroup import ControlGroup, cpu_group, memory_group
from paceline.hardware.host import Host, unreclaimable_bytes
from paceline.hardware.operating_system import HostFiles
from paceline.monitor.gauges import counters
from paceline.monitor.gauges.counters import CoreTicks, DiskCounts, NetworkCounts, Pressure
from paceline.monitor.gauges.tree import TreeReading

_RESOURCES = ("cpu", "io", "memory")
_RDMA_WORD_BYTES = 4  # InfiniBand counts data in words of 4 bytes, independent of the number of lanes


@dataclass(frozen=True, kw_only=True)
class HostCounters:
    """All counters of a host at one time."""

    time_ns: int
    cores: Mapping[int, CoreTicks]
    runnable: int | None
    memory: Mapping[str, int]  # /proc/meminfo, in bytes
    group_bytes: int | None  # memory that the control group cannot give back; None: no limit
    paging: Mapping[str, int]  # /proc/vmstat
    disks: Mapping[str, DiskCounts]
    network: NetworkCounts | None
    rdma: NetworkCounts | None
    pressure: Mapping[str, Mapping[str, Pressure]]
    throttling: Mapping[str, int]  # cpu.stat of the group that has the quota
    oom_kills: int | None  # since the reader was created
    tree: TreeReading


class HostReader:
    """Reads snapshots of one host. It determines once which files to read."""

    def __init__(self, files: HostFiles) -> None:
        self._files = files
        self._cpu = cpu_group(files)
        self._memory = memory_group(files)
        self._disks = counters.whole_disks(files.names("/sys/block"))
        self._interfaces = _interfaces(files)
        self._rdma = _rdma_ports(files)
        self.oom_source = _oom_source(files, self._memory)
        self._kills_before = self._kills() or 0

    def snapshot(self, time_ns: int, tree: TreeReading) -> HostCounters:
        """Read every counter.

        Args:
            time_ns: The time of CLOCK_MONOTONIC.
            tree: CPU time and memory of the run's processes.
        """
        read = self._files.read
        stat, paging = read("/proc/stat") or "", counters.keyed(read("/proc/vmstat"))
        return HostCounters(
            time_ns=time_ns,
            cores=counters.cores(stat),
            runnable=counters.keyed(stat[stat.find("procs_running") :]).get("procs_running"),
            memory=counters.keyed(read("/proc/meminfo")),
            group_bytes=unreclaimable_bytes(self._files, self._memory),
            paging=paging,
            disks=counters.disks(read("/proc/diskstats") or "", self._disks),
            network=counters.network(read("/proc/net/dev") or "", self._interfaces),
            rdma=self._rdma_counts(),
            pressure={each: counters.pressures(read(f"/proc/pressure/{each}")) for each in _RESOURCES},
            throttling=self._throttling(),
            oom_kills=None if (kills := self._kills()) is None else kills - self._kills_before,
            tree=tree,
        )

    def _kills(self) -> int | None:
        return counters.keyed(self._files.read(self.oom_source)).get("oom_kill")

    def _throttling(self) -> dict[str, int]:
        folder = self._cpu.limit_folder
        return counters.keyed(self._files.read(f"{folder}/cpu.stat")) if folder else {}

    def _rdma_counts(self) -> NetworkCounts | None:
        received = [self._files.read(f"{port}/port_rcv_data") for port in self._rdma]
        sent = [self._files.read(f"{port}/port_xmit_data") for port in self._rdma]
        if not all([*received, *sent]) or not self._rdma:
            return None
        return NetworkCounts(received_bytes=_words(received), sent_bytes=_words(sent))


def readings(before: HostCounters, after: HostCounters, host: Host) -> dict[str, Any]:
    """Return the readings between two snapshots by the keys of a gauge line; None for an unknown value."""
    seconds = (after.time_ns - before.time_ns) / 1e9
    return {
        "interval_s": round(seconds, 4),
        **_cpu(before, after, host, seconds),
        **_memory(before, after, host, seconds),
        **_disk(before, after, seconds),
        **_network("network", before.network, after.network, seconds),
        **_network("rdma", before.rdma, after.rdma, seconds),
        **_pressure(before, after, seconds),
        **_throttled(before.throttling, after.throttling, seconds),
        "oom_kills": after.oom_kills,
    }


def missing(now: HostCounters, host: Host, oom_source: str) -> dict[str, str]:
    """Return the keys whose values stay None on this host, each with the reason."""
    boot = replace(now, time_ns=now.time_ns - 1_000_000_000, cores=dict.fromkeys(now.cores, _NO_TICKS))
    return {key: _reason(key, oom_source) for key, value in readings(boot, now, host).items() if value is None}


def _reason(key: str, oom_source: str) -> str:
    known = next((text for start, text in _REASONS.items() if key.startswith(start)), None)
    return known or f"{oom_source} does not count them"


_NO_TICKS = CoreTicks(busy=0, iowait=0, steal=0, total=0)
_NO_STAT = "/proc/stat does not count the time of cores"
_REASONS = {
    "core_busy": _NO_STAT,
    "cpu": _NO_STAT,
    "other_cpu": _NO_STAT,
    "runnable": "/proc/stat does not count them",
    "pressure_cpu_full": "this kernel has no /proc/pressure/cpu, or no full line in it",
    "pressure": "no /proc/pressure: a kernel without pressure stall information, or started with psi=0",
    "disk": "no disk in /sys/block that /proc/diskstats counts",
    "network": "no network interface but lo",
    "rdma": "no InfiniBand or RoCE device",
    "cgroup_throttled": "no CPU quota is set",
    "cgroup_memory": "no memory limit is set",
    "memory": "/proc/meminfo could not be read",
    "swap": "/proc/vmstat or /proc/meminfo does not tell",
}


def _cpu(before: HostCounters, after: HostCounters, host: Host, seconds: float) -> dict[str, Any]:
    spent = {n: _spent(before.cores[n], after.cores[n]) for n in after.cores.keys() & before.cores.keys()}
    ours = [spent[n] for n in host.affinity if n in spent]
    total = sum(each.total for each in ours)
    own = max(0.0, after.tree.cpu_s - before.tree.cpu_s) / seconds
    busy = _share(sum(each.busy for each in ours), total)
    return {
        "core_busy_percent": _percents(spent),
        "cpu_busy_share": busy,
        "cpu_iowait_share": _share(sum(each.iowait for each in ours), total),
        "cpu_steal_share": _share(sum(each.steal for each in ours), total),
        "own_cpu_cores": round(own, 3),
        "other_cpu_cores": None if busy is None else round(max(0.0, busy * len(ours) - own), 3),
        "own_processes": len(after.tree.pids),
        "own_threads": after.tree.threads,
        "own_rss_bytes": after.tree.rss_bytes,
        "runnable_threads": after.runnable,
    }


def _memory(before: HostCounters, after: HostCounters, host: Host, seconds: float) -> dict[str, Any]:
    memory = after.memory
    available, limit = memory.get("MemAvailable"), host.memory_limit_bytes
    if available is not None and after.group_bytes is not None and limit is not None:
        available = min(available, max(0, limit - after.group_bytes))
    used = [memory.get("SwapTotal"), memory.get("SwapFree")]
    return {
        "memory_total_bytes": limit,
        "memory_available_bytes": available,
        "cgroup_memory_bytes": after.group_bytes,
        "swap_used_bytes": None if used[0] is None or used[1] is None else used[0] - used[1],
        "swap_in_pages_per_s": _rate(before.paging.get("pswpin"), after.paging.get("pswpin"), seconds),
        "swap_out_pages_per_s": _rate(before.paging.get("pswpout"), after.paging.get("pswpout"), seconds),
    }


def _disk(before: HostCounters, after: HostCounters, seconds: float) -> dict[str, Any]:
    pairs = [(before.disks[name], now) for name, now in after.disks.items() if name in before.disks]
    busy = [min(1.0, (now.busy_ms - then.busy_ms) / 1e3 / seconds) for then, now in pairs]
    return {
        "disk_read_bytes_per_s": _sum_rate(((a.read_bytes, b.read_bytes) for a, b in pairs), seconds),
        "disk_write_bytes_per_s": _sum_rate(((a.written_bytes, b.written_bytes) for a, b in pairs), seconds),
        "disk_reads_per_s": _sum_rate(((a.reads, b.reads) for a, b in pairs), seconds),
        "disk_writes_per_s": _sum_rate(((a.writes, b.writes) for a, b in pairs), seconds),
        "disk_busy_share": round(max(busy), 4) if busy else None,
    }


def _network(name: str, before: NetworkCounts | None, after: NetworkCounts | None, seconds: float) -> dict[str, Any]:
    if before is None or after is None:
        return {f"{name}_rx_bytes_per_s": None, f"{name}_tx_bytes_per_s": None}
    return {
        f"{name}_rx_bytes_per_s": _rate(before.received_bytes, after.received_bytes, seconds),
        f"{name}_tx_bytes_per_s": _rate(before.sent_bytes, after.sent_bytes, seconds),
    }


def _pressure(before: HostCounters, after: HostCounters, seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for resource in _RESOURCES:
        for kind in ("some", "full"):
            then, now = before.pressure[resource].get(kind), after.pressure[resource].get(kind)
            known = then is not None and now is not None
            stalled_s = (now.total_us - then.total_us) / 1e6 if then and now else 0.0
            found[f"pressure_{resource}_{kind}_share"] = round(min(1.0, stalled_s / seconds), 4) if known else None
            found[f"pressure_{resource}_{kind}_avg10_share"] = round(now.avg10_share, 4) if now else None
    return found


def _throttled(before: Mapping[str, int], after: Mapping[str, int], seconds: float) -> dict[str, Any]:
    if "nr_throttled" not in before or "nr_throttled" not in after:
        return {"cgroup_throttled_share": None, "cgroup_throttled_s_per_s": None}
    periods = after["nr_periods"] - before["nr_periods"]
    throttled = after["nr_throttled"] - before["nr_throttled"]
    return {
        "cgroup_throttled_share": round(throttled / periods, 4) if periods else 0.0,
        "cgroup_throttled_s_per_s": round((_throttled_s(after) - _throttled_s(before)) / seconds, 4),
    }


def _throttled_s(stat: Mapping[str, int]) -> float:
    return stat.get("throttled_usec", 0) / 1e6 + stat.get("throttled_time", 0) / 1e9  # v2, v1


def _spent(before: CoreTicks, after: CoreTicks) -> CoreTicks:
    return CoreTicks(
        busy=max(0, after.busy - before.busy),
        iowait=max(0, after.iowait - before.iowait),  # the kernel's iowait can decrease
        steal=max(0, after.steal - before.steal),
        total=max(0, after.total - before.total),
    )


def _percents(spent: Mapping[int, CoreTicks]) -> list[int | None] | None:
    """Return the busy percentage of each core, indexed by core number; None if no core has ticks."""
    if not any(each.total for each in spent.values()):
        return None
    last = max(spent)
    return [_percent(spent.get(number)) for number in range(last + 1)]


def _percent(core: CoreTicks | None) -> int | None:
    return min(100, round(100 * core.busy / core.total)) if core and core.total else None


def _share(part: int, whole: int) -> float | None:
    return round(min(1.0, part / whole), 4) if whole else None


def _rate(before: int | None, after: int | None, seconds: float) -> float | None:
    return None if before is None or after is None else round(max(0, after - before) / seconds, 1)


def _sum_rate(pairs: Iterable[tuple[int, int]], seconds: float) -> float | None:
    rates = [max(0, after - before) / seconds for before, after in pairs]
    return round(sum(rates), 1) if rates else None


def _words(counts: list[str | None]) -> int:
    return sum(int(each) for each in counts if each) * _RDMA_WORD_BYTES


def _interfaces(files: HostFiles) -> frozenset[str]:
    """Return the physical network interfaces; if there are none (in a container), all interfaces except lo."""
    names = [name for name in files.names("/sys/class/net") if name != "lo"]
    hardware = [name for name in names if "device" in files.names(f"/sys/class/net/{name}")]
    return frozenset(hardware or names)


def _rdma_ports(files: HostFiles) -> list[str]:
    base = "/sys/class/infiniband"
    return [
        f"{base}/{device}/ports/{port}/counters"
        for device in files.names(base)
        for port in files.names(f"{base}/{device}/ports")
    ]


def _oom_source(files: HostFiles, memory: ControlGroup) -> str:
    """Return the file that counts out-of-memory kills: the control group's if it has the counter, else the host's."""
    name = {1: "memory.oom_control", 2: "memory.events"}.get(memory.version)
    own = f"{memory.folder}/{name}"
    return own if name and "oom_kill" in counters.keyed(files.read(own)) else "/proc/vmstat"
