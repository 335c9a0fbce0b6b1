"""Profiler captures: read, broken down, matched over ranks. What a capture shows is decided in ``explain``."""

from __future__ import annotations

from collections.abc import Mapping

# Parts of a capture that may be looked at, and what each holds; `window` says it in full.
WINDOWS: Mapping[str, str] = {
    "all": "every GPU event",
    "steps": "the GPU work that the marked steps launched",
    "hta": "the events that HolisticTraceAnalysis uses",
}
