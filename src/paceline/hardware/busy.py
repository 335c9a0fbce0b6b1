"""How much CPU time has all of this host given so far?"""

from __future__ import annotations

import os

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def host_busy_s() -> float:
    """Return the CPU seconds that processes have had since the host started, and what was taken from it meanwhile.

    The latter ("stolen") is what other guests had of a virtual machine's cores while something here wanted to run.
    """
    with open("/proc/stat", encoding="ascii") as file:
        fields = [int(x) for x in file.readline().split()[1:]]
    user, nice, system = fields[:3]
    stolen = fields[7] if len(fields) > 7 else 0
    return (user + nice + system + stolen) / _TICKS
