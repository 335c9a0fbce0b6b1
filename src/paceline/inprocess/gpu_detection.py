"""Could torch use a GPU here? Looks at files only: asking the driver takes time and could spoil a later fork."""

from __future__ import annotations

import os
from typing import Any

_DRIVERS = ("/dev/nvidiactl", "/dev/nvmap", "/dev/dxg", "/dev/kfd")  # NVIDIA, on Jetson, under WSL; AMD


def has_gpu(torch: Any) -> bool:
    """Say whether torch was built for GPUs and a driver shows one."""
    built = torch.version.cuda or torch.version.hip
    return bool(built) and any(map(os.path.exists, _DRIVERS))
