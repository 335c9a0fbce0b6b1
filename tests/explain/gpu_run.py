"""Made-up records of runs on a GPU, with numbers that are plausible for an H200."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.explain.build import FIRST_NS, HOST, RunFolder, S, steps

from paceline.explain.analysis.run_analysis import RunAnalysis
from paceline.record import layout
from paceline.record.layout import FLAG_DEVICE_TIMED, FLAG_FRESH

GIB = 2**30
UUID = "GPU-11111111-2222-3333-4444-555555555555"

META = {
    "device": "cuda",
    "device_name": "NVIDIA H200",
    "device_index": 0,
    "device_total_bytes": 140 * GIB,
    "device_uuid": "11111111-2222-3333-4444-555555555555",  # as torch gives it
    "visible_devices": None,
    "capability": "9.0",
    "autocast": "bfloat16",
    "matmul_tf32": False,
    "convolution_tf32": True,
    "cuda_graphs": False,
}
CARD = {
    "index": 0,
    "uuid": UUID,
    "name": "NVIDIA H200",
    "memory_total_bytes": 140 * GIB,
    "power_limit_default_w": 700.0,
    "power_limit_max_w": 700.0,
    "sm_clock_max_mhz": 1980,
    "pcie_max_gen": 5,
    "pcie_card_max_gen": 5,
    "pcie_max_width": 16,
}
READING = {
    "index": 0,
    "utilization_gpu_percent": 97,
    "memory_used_bytes": 90 * GIB,
    "temperature_c": 61,
    "power_w": 520.0,
    "power_limit_w": 700.0,
    "sm_clock_mhz": 1980,
    "throttle_reasons": [],
    "pcie_gen": 5,
    "pcie_width": 16,
    "ecc_corrected": 0,
    "ecc_uncorrected": 0,
    "nvlink_errors": {"replay": 0, "recovery": 0, "crc_flit": 0, "crc_data": 0},
    "xids": [],
    "processes": [{"pid": 1000, "memory_bytes": 90 * GIB, "own": True}],
}
OPTIMIZER = {"class": "AdamW", "fused": None, "foreach": None, "tensors": 60, "parameters": 10**8, "device": "cuda"}
COMPUTING = {"data_wait": 0.05, "forward": 3, "backward": 6, "optimizer": 0.9, "other": 0.05}

Reading = Mapping[str, Any]


def timed(count: int = 200, **spent_ms: Any) -> list[dict[str, Any]]:
    """Steps that the device timed; as of a healthy run unless said."""
    return steps(count, **{**COMPUTING, "flags": FLAG_FRESH | FLAG_DEVICE_TIMED, **spent_ms})


def window(operators: Sequence[tuple[str, int, float, float | None]] = (), **work: Any) -> dict[str, Any]:
    """The note of a profiler window of one step: operators as (name, count, host µs, device µs)."""
    found = [
        {"name": name, "count": count, "self_s": host / 1e6, "device_self_s": None if device is None else device / 1e6}
        for name, count, host, device in operators or [("aten::mm", 300, 1500, 6000), ("aten::add", 100, 500, 500)]
    ]
    matrix = {"flops": {"matmul": 2e12, "convolution": 0, "attention": 0}, "products": [], "uncounted": []} | work
    return {"kind": "window", "steps": 1, "wall_s": 0.012, "operators": found, "matrix_work": matrix}


# the GPU ends a pass long after the host has launched it: it is never idle
BEHIND = {"lag_s": {"forward": 0.005, "backward": 0.005}, "lag_count": 50}


def gpu_run(
    folder: Path,
    rows: Sequence[Mapping[str, Any]] | None = None,
    *,
    meta: Mapping[str, Any] | None = None,
    card: Mapping[str, Any] | None = None,
    readings: Callable[[int], Reading] | Reading = {},  # noqa: B006  never changed
    count: int = 20,
    memory: tuple[float, float, int] = (90.0, 95.0, 0),
    summary: Mapping[str, Any] | None = None,
    notes: Sequence[Mapping[str, Any]] | None = None,
) -> RunAnalysis:
    """Write a run of one rank on one GPU and gather its facts.

    `readings`: what differs from READING, for each by its number or for all. `memory`: GiB allocated at most and
    reserved, and retries.
    """
    run = RunFolder(folder).rank(
        rows if rows is not None else timed(),
        meta={**META, **(meta or {})},
        summary={"optimizers": [OPTIMIZER | {"dtype": "float32"}], "device": BEHIND, **(summary or {})},
        notes=[{"kind": "end", "exception": None}, *(notes if notes is not None else [window()])],
    )
    place = run.folder / layout.RANKS_DIR / f"{HOST}-1000" / layout.TICKS_FILE
    place.write_bytes(_ticks(run.end_ns, *memory))
    _write_gauges(run, {**CARD, **(card or {})}, readings, count)
    return run.facts()


def _write_gauges(run: RunFolder, card: Mapping[str, Any], readings: Callable[[int], Reading] | Reading, count: int):
    lines: list[Mapping[str, Any]] = [
        {"kind": "header", "schema": 1, "allowed_cores": 8.0, "gpus": [card], "unavailable": {}}
    ]
    span = run.end_ns - FIRST_NS
    for number in range(count):
        changes = readings(number) if callable(readings) else readings
        gpu = {**READING, **changes}
        time_ns = FIRST_NS + span * (number + 1) // count
        lines.append({"kind": "host", "time_ns": time_ns, "interval_s": span / count / S, "gpus": [gpu]})
    folder = run.folder / layout.GAUGES_DIR
    folder.mkdir(exist_ok=True)
    (folder / f"{HOST}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def _ticks(end_ns: int, peak_gib: float, reserved_gib: float, retries: int, count: int = 10) -> bytes:
    rows = []
    for number in range(1, count + 1):
        now = FIRST_NS + (end_ns - FIRST_NS) * number // count
        device = (peak_gib * GIB * 0.9, reserved_gib * GIB, peak_gib * GIB, float(retries))
        memory = (*device, math.nan, 0.0, math.nan)
        rows.append(layout.TICK.pack(now, number, 8, 4e9, 1.0, 1.0, 0.0, 0.0, math.nan, *memory))
    return b"".join(rows)
