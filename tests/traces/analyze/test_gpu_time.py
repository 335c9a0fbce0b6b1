"""Real captures against figures worked out apart from this code, `captures/exact.json`."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from paceline.traces.analyze.gpu_time import Breakdown, break_down, events_in
from paceline.traces.capture import Capture
from paceline.traces.read import kineto, nsys

HERE = Path(__file__).parents[1] / "captures"
EXACT = json.loads((HERE / "exact.json").read_text())
KINETO = sorted(key for key in EXACT if "whole_trace" in EXACT[key])
NSYS = sorted(EXACT.keys() - set(KINETO))


def capture_of(key: str) -> Capture:
    """`dlrm8/rank3` is that file; `b200_eager/rank0` is the only rank of its file."""
    file = HERE / f"{key.replace('/', '_')}.json.gz"
    return kineto.read(file if file.exists() else HERE / f"{key.partition('/')[0]}.json.gz")


@pytest.mark.parametrize("key", KINETO)
def test_the_whole_of_a_capture(key):
    found, exact = break_down(events_in(capture_of(key), "all")), EXACT[key]["whole_trace"]
    assert found.events == exact["n"]
    assert in_us(found) == pytest.approx(
        {
            "span": exact["span_us"],
            "busy": exact["busy_us"],
            "idle": exact["idle_us"],
            "compute": exact["compute_us"],
            "communication": exact["comm_us"],
            "exposed communication": exact["exposed_comm_us"],
            "overlap": exact["comm_comp_overlap_us"],
            "copy": exact["mem_us"],
            "exposed copy": exact["exposed_mem_us"],
        },
        abs=0.01,
    )


@pytest.mark.parametrize("key", KINETO)
def test_the_window_of_hta(key):
    found, exact = break_down(events_in(capture_of(key), "hta")), EXACT[key]["hta_window"]
    assert found.events == exact["n"]
    us = in_us(found)
    assert [us["span"], us["idle"], us["compute"], us["communication"], us["exposed communication"]] == pytest.approx(
        [exact["kernel_time"], exact["idle"], exact["compute"], exact["comm"], exact["exposed"]], abs=0.01
    )
    assert us["busy"] - us["compute"] == pytest.approx(exact["non_compute"], abs=0.01)


@pytest.mark.parametrize("key", NSYS)
def test_a_gpu_of_an_nsight_export(key, tmp_path):
    name, _, gpu = key.partition("/")
    file = tmp_path / f"{name}.sqlite"
    with gzip.open(HERE / f"{name}.sqlite.gz") as packed, file.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked)
    assert nsys.is_export(file)
    (capture,) = [one for one in nsys.read(file) if one.device == int(gpu.removeprefix("gpu"))]
    found, exact = break_down(capture.events), EXACT[key]
    assert (found.span_ns, found.idle_ns, found.compute_ns) == (exact["span_ns"], exact["idle_ns"], exact["compute_ns"])
    assert (found.communication_ns, found.exposed_communication_ns) == (exact["comm_ns"], exact["exposed_comm_ns"])


@pytest.mark.parametrize("key", KINETO)
@pytest.mark.parametrize("window", ["all", "steps", "hta"])
def test_the_parts_tile_the_span(key, window):
    found = break_down(events_in(capture_of(key), window))
    parts = found.idle_ns + found.compute_ns + found.exposed_communication_ns + found.exposed_copy_ns
    assert parts == found.span_ns > 0


def in_us(found: Breakdown) -> dict[str, float]:
    return {
        "span": found.span_ns / 1e3,
        "busy": found.busy_ns / 1e3,
        "idle": found.idle_ns / 1e3,
        "compute": found.compute_ns / 1e3,
        "communication": found.communication_ns / 1e3,
        "exposed communication": found.exposed_communication_ns / 1e3,
        "overlap": found.overlap_ns / 1e3,
        "copy": found.copy_ns / 1e3,
        "exposed copy": found.exposed_copy_ns / 1e3,
    }
