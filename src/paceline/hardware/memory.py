"""How much memory could be used now, without swapping and without the kernel ending somebody?

    min(MemAvailable, memory.max - (memory.current - inactive_file))

over the group that limits us; what a group keeps of files it does not use any more goes first.
Source: Linux proc(5) and admin-guide/cgroup-v2.
"""

from __future__ import annotations

from paceline.hardware.cgroup import Group, memory_group
from paceline.hardware.files import HostFiles

_USED = {1: "memory.usage_in_bytes", 2: "memory.current"}
_COLD = {1: "total_inactive_file", 2: "inactive_file"}  # page cache that goes first: no sign of need


def available_bytes(files: HostFiles) -> float | None:
    """Return the bytes that could be used now; None where neither the host nor a group tells."""
    found = [left for left in (_of_host(files), _of_group(files, memory_group(files))) if left is not None]
    return min(found, default=None)


def _of_host(files: HostFiles) -> float | None:
    kib = _fields(files.read("/proc/meminfo")).get("MemAvailable:")
    return 1024.0 * kib if kib is not None else None


def held_bytes(files: HostFiles, group: Group) -> int | None:
    """Return the bytes that a group cannot give back; None where no limit binds, or nothing is told."""
    if group.limit_folder is None:
        return None
    used = (files.read(f"{group.limit_folder}/{_USED[group.version]}") or "").strip()
    cold = _fields(files.read(f"{group.limit_folder}/memory.stat")).get(_COLD[group.version], 0)
    return max(0, int(used) - cold) if used.isdigit() else None


def _of_group(files: HostFiles, group: Group) -> float | None:
    held = held_bytes(files, group)
    return None if held is None or group.limit is None else max(0.0, group.limit - held)


def _fields(text: str | None) -> dict[str, int]:
    """Return lines of a name and a whole number, by name."""
    rows = [line.split() for line in (text or "").splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) >= 2 and row[1].isdigit()}
