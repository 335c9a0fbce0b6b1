"""Parsers for the counters in text files of /proc, /sys and control groups: functions from text to numbers.

Sources: man 5 proc; Linux Documentation/admin-guide/iostats.rst, accounting/psi.rst, admin-guide/cgroup-v2.rst and
cgroup-v1. Counters only grow; a rate is the difference of two counters divided by the time between them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

SECTOR_BYTES = 512  # the unit of /proc/diskstats, independent of the sector size of the device


@dataclass(frozen=True, kw_only=True)
class CoreTicks:
    """Time of one core since boot, in clock ticks."""

    busy: int  # user, nice, system, interrupts
    iowait: int
    steal: int  # time in which the hypervisor gave the core to another guest
    total: int


@dataclass(frozen=True, kw_only=True)
class DiskCounts:
    """I/O counts of one whole block device since boot."""

    reads: int
    read_bytes: int
    writes: int
    written_bytes: int
    busy_ms: int  # time with at least one request in flight


@dataclass(frozen=True, kw_only=True)
class NetworkCounts:
    """Bytes received and sent over all counted interfaces since boot."""

    received_bytes: int
    sent_bytes: int


@dataclass(frozen=True, kw_only=True)
class Pressure:
    """One line of a pressure file (PSI): the time in which tasks were stalled."""

    avg10_share: float  # share of the last 10 s, 0 to 1
    total_us: int  # since boot


def cores(stat: str) -> dict[int, CoreTicks]:
    """Return the ticks of each core by its number, from the text of /proc/stat."""
    found = {}
    for line in stat.splitlines():
        name, _, rest = line.partition(" ")
        if not name.startswith("cpu"):
            break
        if name != "cpu":
            found[int(name[3:])] = _core(rest)
    return found


def _core(fields: str) -> CoreTicks:
    # Guest time (the last two fields) is already included in user and nice.
    user, nice, system, idle, iowait, irq, softirq, steal = (int(x) for x in fields.split()[:8])
    busy = user + nice + system + irq + softirq
    return CoreTicks(busy=busy, iowait=iowait, steal=steal, total=busy + idle + iowait + steal)


def keyed(text: str | None) -> dict[str, int]:
    """Parse a file of ``name value`` or ``name: value kB`` lines; return numbers by name, kB values in bytes."""
    numbers = {}
    for line in (text or "").splitlines():
        fields = line.split()
        if len(fields) >= 2 and fields[1].isdigit():
            numbers[fields[0].rstrip(":")] = int(fields[1]) * (1024 if fields[2:] == ["kB"] else 1)
    return numbers


def disks(diskstats: str, devices: Collection[str]) -> dict[str, DiskCounts]:
    """Return the counts of the given devices, from the text of /proc/diskstats."""
    found = {}
    for line in diskstats.splitlines():
        fields = line.split()
        if len(fields) >= 13 and fields[2] in devices:
            found[fields[2]] = DiskCounts(
                reads=int(fields[3]),
                read_bytes=int(fields[5]) * SECTOR_BYTES,
                writes=int(fields[7]),
                written_bytes=int(fields[9]) * SECTOR_BYTES,
                busy_ms=int(fields[12]),
            )
    return found


def whole_disks(names: Collection[str]) -> frozenset[str]:
    """Return the names in /sys/block that are physical disks.

    Device mapper, RAID and multipath devices only forward requests to the disks below them; loop devices are files.
    """
    virtual = ("dm-", "md", "loop", "ram", "zram", "sr", "fd")
    return frozenset(name for name in names if not name.startswith(virtual))


def network(net_dev: str, interfaces: Collection[str]) -> NetworkCounts | None:
    """Return the bytes over the given interfaces, from the text of /proc/net/dev; None if no interface is listed."""
    received = sent = seen = 0
    for line in net_dev.splitlines():
        name, colon, rest = line.partition(":")
        if colon and name.strip() in interfaces:
            fields = rest.split()
            received, sent, seen = received + int(fields[0]), sent + int(fields[8]), seen + 1
    return NetworkCounts(received_bytes=received, sent_bytes=sent) if seen else None


def pressures(text: str | None) -> dict[str, Pressure]:
    """Return the lines ``some`` and ``full`` of a pressure file; empty if there is no file."""
    found = {}
    for line in (text or "").splitlines():
        kind, *fields = line.split()
        values = dict(field.split("=", 1) for field in fields)
        found[kind] = Pressure(avg10_share=float(values["avg10"]) / 100, total_us=int(values["total"]))
    return found
