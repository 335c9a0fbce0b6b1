"""[allocator]: how torch's allocator reserves memory of a CUDA device.

The allocator reads its settings from the environment when the device is first used. The settings are therefore added to
the environment before the program starts, next to existing settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.inprocess.settings import on_cuda

_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # the second is the older name, which torch still reads
_OPTION = "expandable_segments"


def environment(settings: Mapping[str, Any], present: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables to set, given the present ones; the program's own choice is kept."""
    if not settings.get(_OPTION):
        return {}
    given = {name: present[name] for name in _VARIABLES if present.get(name)} or {_VARIABLES[0]: ""}
    if any(_OPTION in value for value in given.values()):
        return {}
    return {name: f"{value},{_OPTION}:True".lstrip(",") for name, value in given.items()}


def patch(torch: Any, settings: Mapping[str, Any]) -> None:
    """Check whether the allocator applied the setting."""

    def why_not(_: Any, device: Any) -> str | None:
        segments = [s for s in torch.cuda.memory_snapshot() if s["device"] == device.index]
        if any(segment.get("is_expandable") for segment in segments):
            return None
        return (
            f"the allocator reserved no expandable segment: the program sets {' or '.join(_VARIABLES)} itself, "
            "or the device does not support expandable segments"
        )

    if settings.get(_OPTION):
        on_cuda.told_at_first_step(
            torch, f"allocator.{_OPTION}", "the allocator reserves GPU memory in expandable segments", why_not
        )
