"""Reads, analyzes and compares profiler captures (recorded traces) of one or more ranks.

``explain`` derives its findings about captures from the results.
"""

from __future__ import annotations

from collections.abc import Mapping

# Windows of a capture and the events in each; `analyze.gpu_time` defines them.
WINDOWS: Mapping[str, str] = {
    "all": "every GPU event",
    "steps": "the GPU work that the marked steps launched",
    "hta": "the events that HolisticTraceAnalysis uses",
}
