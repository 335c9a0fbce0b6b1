"""Where, when and with what were figures taken?"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def about(packages: Sequence[str]) -> dict[str, Any]:
    """Return date, device, load of the machine at the start, and versions."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "device": f"CPU, {len(os.sched_getaffinity(0))} cores, {cpu_model()}",
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
    }


def stolen_s() -> float:
    """Return the CPU seconds that other guests of the same machine took from this one, since it started."""
    fields = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK") if len(fields) > 8 else 0.0


def cpu_model() -> str:
    """Return what the processor calls itself."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def version(package: str) -> str | None:
    """Return the version of a package, None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
