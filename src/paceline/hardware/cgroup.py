"""The CPU and memory limits of control groups: the tightest limit from this process's group up to the root.

    cores = quota / period        cpu.max (v2), cpu.cfs_quota_us / cpu.cfs_period_us (v1)
    bytes                         memory.max (v2), memory.limit_in_bytes (v1)

Source: Linux admin-guide/cgroup-v2 and cgroup-v1. A limit on any ancestor applies, so the limits of all visible groups
are read. In a container without a cgroup namespace, /proc/self/cgroup has the path on the host, but the mount shows
only the end of this path. The root of the mount (field 4 of mountinfo) is the prefix to remove.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.hardware.operating_system import HostFiles

_UNLIMITED_V1_BYTES = 1 << 60  # v1 writes "no limit" as the largest page-aligned number


@dataclass(frozen=True, kw_only=True)
class ControlGroup:
    """The limit of one controller (CPU or memory) on this process."""

    version: int  # 1 or 2; 0 if the controller is not visible
    folder: str | None  # folder of this process's group
    limit: float | None  # in cores or bytes, the tightest up to the root; None: no limit
    limit_folder: str | None  # folder of the group with this limit


@dataclass(frozen=True, kw_only=True)
class _Mount:
    root: str
    point: str
    kind: str
    controllers: frozenset[str]


def cpu_group(files: HostFiles) -> ControlGroup:
    """Return the control group that limits the CPU time of this process. The limit is in cores, such as 1.5."""
    version, folders = _folders(files, "cpu")
    read = _quota_v1 if version == 1 else _quota_v2
    return _tightest(version, folders, [read(files, each) for each in folders])


def memory_group(files: HostFiles) -> ControlGroup:
    """Return the control group that limits the memory of this process. The limit is in bytes."""
    version, folders = _folders(files, "memory")
    name = "memory.limit_in_bytes" if version == 1 else "memory.max"
    return _tightest(version, folders, [_number(files.read(f"{each}/{name}")) for each in folders])


def _tightest(version: int, folders: list[str], limits: list[float | None]) -> ControlGroup:
    if not folders:
        return ControlGroup(version=0, folder=None, limit=None, limit_folder=None)
    bound = [(limit, folder) for limit, folder in zip(limits, folders, strict=True) if limit is not None]
    limit, setter = min(bound, default=(None, None), key=lambda pair: pair[0])
    return ControlGroup(version=version, folder=folders[0], limit=limit, limit_folder=setter)


def _quota_v2(files: HostFiles, folder: str) -> float | None:
    fields = (files.read(f"{folder}/cpu.max") or "").split()
    return _ratio(fields[0], fields[1]) if len(fields) == 2 else None


def _quota_v1(files: HostFiles, folder: str) -> float | None:
    quota = files.read(f"{folder}/cpu.cfs_quota_us")
    period = files.read(f"{folder}/cpu.cfs_period_us")
    return _ratio(quota, period) if quota and period else None


def _ratio(quota: str, period: str) -> float | None:
    above, below = _number(quota), _number(period)
    return above / below if above and below else None


def _number(text: str | None) -> float | None:
    """Return a limit as a number; None for "max", for -1 and for v1's "no limit" number."""
    word = (text or "").strip()
    value = int(word) if word.isdigit() else -1
    return float(value) if 0 <= value < _UNLIMITED_V1_BYTES else None


def _folders(files: HostFiles, controller: str) -> tuple[int, list[str]]:
    """Return the cgroup version, and the folders from the group of this process up to the root of the mount."""
    paths = _own_paths(files)
    mounts = _mounts(files)
    for version, key in ((1, controller), (2, "")):
        mount = next((each for each in mounts if _serves(each, version, controller)), None)
        if mount is not None and key in paths:
            return version, _ancestry(mount, paths[key])
    return 0, []


def _serves(mount: _Mount, version: int, controller: str) -> bool:
    if version == 2:
        return mount.kind == "cgroup2"
    return mount.kind == "cgroup" and controller in mount.controllers


def _ancestry(mount: _Mount, path: str) -> list[str]:
    inside = path == mount.root or path.startswith(mount.root.rstrip("/") + "/")
    tail = path[len(mount.root.rstrip("/")) :] if inside else ""
    parts = [each for each in tail.split("/") if each and each != ".."]
    return ["/".join([mount.point.rstrip("/"), *parts[:depth]]) for depth in range(len(parts), -1, -1)]


def _own_paths(files: HostFiles) -> dict[str, str]:
    """Return the paths of this process's control groups by controller. The key "" is the v2 hierarchy."""
    paths = {}
    for line in (files.read("/proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def _mounts(files: HostFiles) -> list[_Mount]:
    lines = (files.read("/proc/self/mountinfo") or "").splitlines()
    return [_mount(line) for line in lines if " - cgroup" in line]


def _mount(line: str) -> _Mount:
    before, _, after = line.partition(" - ")
    fields, (kind, _, *options) = before.split(" "), after.split(" ")
    return _Mount(
        root=fields[3].replace("\\040", " "),
        point=fields[4].replace("\\040", " "),
        kind=kind,
        controllers=frozenset(options[0].split(",")) if options else frozenset(),
    )
