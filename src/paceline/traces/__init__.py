"""Profiler captures: read, analyzed, matched across ranks. Findings about captures are in ``explain``."""

from __future__ import annotations

from collections.abc import Mapping

# Windows of a capture and the events that each holds; `analyze.gpu_time` defines them.
WINDOWS: Mapping[str, str] = {
    "all": "every GPU event",
    "steps": "the GPU work that the marked steps launched",
    "hta": "the events that HolisticTraceAnalysis uses",
}
