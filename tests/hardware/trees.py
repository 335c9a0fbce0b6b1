"""Trees of files that stand in for a host's /proc and /sys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from paceline.hardware.operating_system import LocalFiles

MOUNTINFO_V1 = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 {root} /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 {root} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
MOUNTINFO_V2 = "30 23 0:27 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"

UNLIMITED_V1 = "9223372036854771712\n"


def plant(root: Path, files: Mapping[str, str], cores: int = 4) -> LocalFiles:
    """Write the files below a folder and return what reads them; the affinity is the first so many cores."""
    for path, text in files.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return LocalFiles(root, frozenset(range(cores)))


def own_group(path: str, version: int, root: str = "/") -> dict[str, str]:
    """Return the two files by which a process finds its control groups."""
    if version == 2:
        return {"/proc/self/cgroup": f"0::{path}\n", "/proc/self/mountinfo": MOUNTINFO_V2.format(root=root)}
    return {
        "/proc/self/cgroup": f"4:memory:{path}\n2:cpu,cpuacct:{path}\n0::/\n",
        "/proc/self/mountinfo": MOUNTINFO_V1.format(root=root),
    }
