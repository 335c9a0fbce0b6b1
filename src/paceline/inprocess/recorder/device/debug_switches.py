"""Debug settings of torch and CUDA that slow training down and were on in this process.

Anomaly detection is often on for only a part of a step, so a setting counts if it was on at one check.
"""

from __future__ import annotations

import os
from typing import Any

_seen: set[str] = set()


def seen(torch: Any) -> list[str]:
    """Return the names of the debug settings that were on now or at an earlier call.

    The names are those of the recipe's section ``[debug]``.
    """
    _seen.update(name for name, is_on in _states(torch).items() if is_on)
    return sorted(_seen)


def _states(torch: Any) -> dict[str, bool]:
    return {
        "anomaly_detection": torch.is_anomaly_enabled(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "launch_blocking": os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"),
        "distributed_debug": os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL",
    }
