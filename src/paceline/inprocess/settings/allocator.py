"""[allocator]: how torch's allocator reserves memory of a CUDA device, and whether the C library keeps freed memory.

Both allocators read their settings from the environment: torch's when the device is first used, that of the C library
when the process starts. The settings are therefore added to the environment before the program starts, next to
existing settings.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Any

from paceline.inprocess.settings import confirmation, on_cuda

_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # the second is the older name, which torch still reads
_OPTION = "expandable_segments"
_RETAIN = "retain_host_memory"
RETAINS: Mapping[str, str] = {  # variables of glibc, in bytes
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),  # smaller blocks come from the heap, which is not given back
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),  # free memory at the end of the heap that is kept
}
_OTHERS = ("jemalloc", "tcmalloc", "mimalloc")


def environment(settings: Mapping[str, Any], present: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables to set, given the present ones; the program's own choice is kept."""
    return {**_segments(settings, present), **_retained(settings, present)}


def _segments(settings: Mapping[str, Any], present: Mapping[str, str]) -> dict[str, str]:
    if not settings.get(_OPTION):
        return {}
    given = {name: present[name] for name in _VARIABLES if present.get(name)} or {_VARIABLES[0]: ""}
    if any(_OPTION in value for value in given.values()):
        return {}
    return {name: f"{value},{_OPTION}:True".lstrip(",") for name, value in given.items()}


def _retained(settings: Mapping[str, Any], present: Mapping[str, str]) -> dict[str, str]:
    chosen = any(name.startswith("MALLOC_") for name in present) or "glibc.malloc" in present.get("GLIBC_TUNABLES", "")
    return dict(RETAINS) if settings.get(_RETAIN) and not chosen else {}


def patch(torch: Any, settings: Mapping[str, Any]) -> None:
    """Check whether the allocators apply the settings."""
    if settings.get(_RETAIN):
        reason = _why_not_retained()
        if reason is None:
            confirmation.took(f"allocator.{_RETAIN}", "the C library keeps freed memory")
        else:
            confirmation.refused(f"allocator.{_RETAIN}", reason)
    if settings.get(_OPTION):
        on_cuda.told_at_first_step(
            torch,
            f"allocator.{_OPTION}",
            "the allocator reserves GPU memory in expandable segments",
            _why_not_expandable(torch),
        )


def _why_not_expandable(torch: Any) -> Any:
    def why_not(_: Any, device: Any) -> str | None:
        segments = [s for s in torch.cuda.memory_snapshot() if s["device"] == device.index]
        if any(segment.get("is_expandable") for segment in segments):
            return None
        return (
            f"the allocator reserved no expandable segment: the program sets {' or '.join(_VARIABLES)} itself, "
            "or the device does not support expandable segments"
        )

    return why_not


def _why_not_retained() -> str | None:
    """Return the reason why the C library of this process gives freed memory back, or None if it keeps the memory."""
    if not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"):
        return "the C library is not glibc"
    if any(os.environ.get(name) != value for name, value in RETAINS.items()):
        return "the environment of the program has other settings of malloc (MALLOC_* or GLIBC_TUNABLES)"
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        loaded = file.read()
    other = next((name for name in _OTHERS if name in loaded), None)
    return f"the process uses {other} in place of the allocator of the C library" if other else None
