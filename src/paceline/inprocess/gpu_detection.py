"""Detect from files whether torch can use a GPU. A call to the driver would take time and could break a later fork."""

from __future__ import annotations

import os
from typing import Any

_DRIVERS = ("/dev/nvidiactl", "/dev/nvmap", "/dev/dxg", "/dev/kfd")  # NVIDIA, NVIDIA Jetson, WSL, AMD


def has_gpu(torch: Any) -> bool:
    """Return whether torch was built for GPUs and a GPU driver is present."""
    built = torch.version.cuda or torch.version.hip
    return bool(built) and any(map(os.path.exists, _DRIVERS))
