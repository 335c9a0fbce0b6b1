"""What does a person read of why a GPU was idle?"""

from __future__ import annotations

from paceline.core import units
from paceline.traces.analyze.idle import MICRO_NS, Idle

CAUSES = {
    "loader": "fetching batches",
    "synchronising": "calls that wait for the GPU",
    "host": "host launching work",
    "device": "work launched but not started",
    "unknown": "unknown",
}
_SHOWN = 0.01  # of idle time


def idle_text(idle: Idle) -> str:
    """Say what a GPU was idle for, the largest part first; empty where it was not."""
    shown = [text for text, share in _parts(idle) if share >= _SHOWN]
    if not shown:
        return ""
    micro = units.percent(idle.micro_ns / idle.total_ns)
    return f"{', '.join(shown)}; {micro} in gaps below {units.seconds(MICRO_NS / 1e9)} ({idle.gaps:,} gaps)"


def main_cause(idle: Idle) -> str:
    """Name the largest part; empty where there is none."""
    return next((text for text, _ in _parts(idle)), "")


def _parts(idle: Idle) -> list[tuple[str, float]]:
    found = sorted(((ns, CAUSES[name]) for name, ns in idle.causes_ns.items() if ns > 0), reverse=True)
    return [(f"{name} {units.percent(ns / idle.total_ns)}", ns / idle.total_ns) for ns, name in found]
