"""Open NVML with a time limit.

Starting the driver takes seconds if no other program uses the GPUs, and a broken driver hangs forever. With the time
limit, the host is sampled in both cases, and a program that ends early need not wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from paceline.monitor.gauges.nvidia import GpuReader
from paceline.monitor.gauges.nvml import Nvml, NvmlFault

_PATIENCE_S = 10.0
_LOOK_EVERY_S = 0.1


def open_gpus() -> GpuReader:
    """Return a reader for the GPUs of this host.

    Raises:
        NvmlFault: No GPU can be read; the message gives the reason.
    """
    return GpuReader(Nvml())


def patiently(
    open_gpus: Callable[[], GpuReader], ended: threading.Event, patience_s: float = _PATIENCE_S
) -> tuple[GpuReader | None, dict[str, str]]:
    """Open the GPU reader in a thread, and wait at most ``patience_s`` seconds, or until ``ended`` is set.

    Returns:
        The reader and no reasons, or None and the reason under the key ``gpus``.
    """
    found: list[GpuReader] = []
    why = ["the driver has not answered"]

    def ask() -> None:
        try:
            found.append(open_gpus())
        except NvmlFault as fault:
            why[0] = fault.reason
        except Exception as error:
            why[0] = f"{type(error).__name__}: {error}"

    asking = threading.Thread(target=ask, name="paceline-nvml", daemon=True)
    asking.start()
    for _ in range(round(patience_s / _LOOK_EVERY_S)):
        asking.join(_LOOK_EVERY_S)
        if ended.is_set() or not asking.is_alive():
            break
    return (found[0], {}) if found else (None, {"gpus": f"NVML: {why[0]}"})
