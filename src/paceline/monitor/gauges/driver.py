"""Are there GPUs to read, and does the driver answer in time?

Starting it takes seconds where no other program uses the GPUs, and a broken driver hangs for good; the host is to
be read all the same, and a program that ends early is not to wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from paceline.monitor.gauges.nvidia import GpuReader
from paceline.monitor.gauges.nvml import Nvml, NvmlFault

_PATIENCE_S = 10.0
_LOOK_EVERY_S = 0.1


def open_gpus() -> GpuReader:
    """Return the GPUs of this host.

    Raises:
        NvmlFault: there are none that we can ask; it says why.
    """
    return GpuReader(Nvml())


def patiently(
    open_gpus: Callable[[], GpuReader], ended: threading.Event, patience_s: float = _PATIENCE_S
) -> tuple[GpuReader | None, dict[str, str]]:
    """Return the GPUs, or None and why there are none; waits for so many seconds, or until the run has ended."""
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
