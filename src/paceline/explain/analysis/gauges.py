"""Gauges of hosts and GPUs as series for charts, thinned and with units, and the reasons for missing gauges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from paceline.core.statistics import thin
from paceline.explain.model import GaugeSeries
from paceline.record.run import JsonObject, Run

_MOST_POINTS = 400

# key of a host reading -> (name, unit, factor that converts to the unit)
_HOST = {
    "own_cpu_cores": ("CPU, this program", "cores", 1.0),
    "other_cpu_cores": ("CPU, others", "cores", 1.0),
    "own_rss_bytes": ("memory, this program", "bytes", 1.0),
    "memory_available_bytes": ("memory available", "bytes", 1.0),
    "disk_read_bytes_per_s": ("disk read", "bytes/s", 1.0),
    "disk_write_bytes_per_s": ("disk write", "bytes/s", 1.0),
    "network_rx_bytes_per_s": ("network received", "bytes/s", 1.0),
    "network_tx_bytes_per_s": ("network sent", "bytes/s", 1.0),
    "pressure_cpu_some_share": ("tasks waiting for a CPU", "%", 100.0),
    "pressure_io_some_share": ("tasks waiting for storage", "%", 100.0),
    "pressure_memory_some_share": ("tasks waiting for memory", "%", 100.0),
    "swap_in_pages_per_s": ("pages swapped in", "pages/s", 1.0),
}
_GPU = {
    "utilization_gpu_percent": ("utilization", "%", 1.0),
    "memory_used_bytes": ("memory used", "bytes", 1.0),
    "power_w": ("power", "W", 1.0),
    "temperature_c": ("temperature", "°C", 1.0),
    "sm_clock_mhz": ("SM clock", "MHz", 1.0),
}
_LIMITS = {"own_cpu_cores": "allowed_cores", "own_rss_bytes": "memory_limit_bytes"}


def missing_gauges(run: Run) -> dict[str, str]:
    """Return the gauges that could not be read, with the reasons."""
    found: dict[str, str] = {}
    for lines in run.gauges.values():
        for line in lines:
            if line.get("kind") == "header":
                found |= {str(k): str(v) for k, v in (line.get("unavailable") or {}).items()}
    return found


def gauge_series(run: Run) -> list[GaugeSeries]:
    """Return the series for charts, host by host. A series that is zero throughout is left out."""
    found: list[GaugeSeries] = []
    for host, lines in list(run.gauges.items())[:8]:
        head: JsonObject = next((x for x in lines if x.get("kind") == "header"), {})
        readings = [x for x in lines if x.get("kind") == "host"]
        if len(readings) < 2:
            continue
        begun = _begun_ns(run, host, readings)
        seconds = [(x["time_ns"] - begun) / 1e9 for x in readings]
        found += _host_series(host, head, readings, seconds)
        found += _gpu_series(host, readings, seconds)
    return found


def _begun_ns(run: Run, host: str, readings: Sequence[JsonObject]) -> float:
    started = [x.started_ns for x in run.launches if x.host == host]
    return float(min(started)) if started else float(readings[0]["time_ns"])


def _host_series(
    host: str, head: JsonObject, readings: Sequence[JsonObject], seconds: Sequence[float]
) -> Iterator[GaugeSeries]:
    for key, (name, unit, factor) in _HOST.items():
        limit = head.get(_LIMITS.get(key, ""))
        series = _series(host, name, unit, [x.get(key) for x in readings], seconds, factor)
        if series is not None:
            yield replace(series, limit=float(limit) if limit else None)


def _gpu_series(host: str, readings: Sequence[JsonObject], seconds: Sequence[float]) -> Iterator[GaugeSeries]:
    count = max((len(x.get("gpus") or ()) for x in readings), default=0)
    for index in range(count):
        per_gpu = [(x.get("gpus") or [])[index : index + 1] for x in readings]
        for key, (name, unit, factor) in _GPU.items():
            values = [g[0].get(key) if g else None for g in per_gpu]
            series = _series(host, f"GPU {index} {name}", unit, values, seconds, factor)
            if series is not None:
                yield series


def _series(
    host: str, name: str, unit: str, values: Sequence[float | None], seconds: Sequence[float], factor: float
) -> GaugeSeries | None:
    if not any(values):
        return None
    picked = thin(np.asarray(seconds), _MOST_POINTS)
    return GaugeSeries(
        host=host,
        name=name,
        unit=unit,
        seconds=[round(seconds[i], 3) for i in picked],
        values=[None if (v := values[i]) is None else v * factor for i in picked],
    )
