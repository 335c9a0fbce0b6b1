"""What was the GPU idle for? Hand-made gaps, and real captures whose causes are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.traces.read.test_kineto import kernel, written

from paceline.traces.analyze.gpu_time import break_down, events_in
from paceline.traces.analyze.idle import idle_of
from paceline.traces.read import kineto

CAPTURES = Path(__file__).parents[1] / "captures"


def launch(ts: float, correlation: int, name: str = "cudaLaunchKernel", dur: float = 1) -> dict:
    args = {"correlation": correlation}
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "ts": ts, "dur": dur, "args": args}


def host_range(ts: float, dur: float, name: str) -> dict:
    return {"ph": "X", "cat": "user_annotation", "name": name, "ts": ts, "dur": dur, "args": {}}


def idle(folder, *events):
    found = kineto.read(written(folder, list(events)))
    return idle_of(found.events, found.launches, found.host)


def test_a_gap_is_parted_at_its_launch(tmp_path):
    """Idle from 10 to 110 us; what ends it was launched at 90, after a batch (20 to 50) and a wait (60 to 80)."""
    found = idle(
        tmp_path,
        kernel(0, 10, correlation=1),
        kernel(110, 10, correlation=2),
        launch(90, 2),
        host_range(20, 30, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
        launch(60, 9, "cudaStreamSynchronize", 20),
    )
    assert (found.loader_ns, found.synchronising_ns, found.host_ns) == (30_000, 20_000, 30_000)
    assert (found.device_ns, found.unknown_ns) == (20_000, 0)
    assert (found.gaps, found.micro_ns, found.macro_ns) == (1, 0, 100_000)


def test_what_was_queued_before_the_gap_waits_on_the_device(tmp_path):
    found = idle(tmp_path, kernel(0, 10, correlation=1), kernel(15, 5, correlation=2), launch(2, 2))
    assert (found.device_ns, found.host_ns, found.micro_ns) == (5_000, 0, 5_000)


def test_without_a_launch_nothing_is_known(tmp_path):
    found = idle(tmp_path, kernel(0, 10), kernel(40, 5), kernel(45, 5, correlation=7))
    assert (found.unknown_ns, found.total_ns) == (30_000, 30_000)


def test_of_nothing_nothing_is_idle(tmp_path):
    assert idle(tmp_path).total_ns == 0
    assert idle(tmp_path, kernel(0, 10)).gaps == 0


@pytest.mark.parametrize("file", sorted(p.name for p in CAPTURES.glob("*.json.gz")))
@pytest.mark.parametrize("window", ["all", "hta"])
def test_causes_add_up_to_the_idle_time(file, window):
    found = kineto.read(CAPTURES / file)
    events = events_in(found, window)
    parts = idle_of(events, found.launches, found.host)
    causes = [parts.loader_ns, parts.synchronising_ns, parts.host_ns, parts.device_ns, parts.unknown_ns]
    assert sum(causes) == parts.total_ns == break_down(events).idle_ns
    assert np.min(causes) >= 0


def test_a_loader_with_workers_is_not_what_a_gpu_waits_for():
    """ResNet-50 with four workers: what idle time there is is not spent in fetching batches."""
    found = kineto.read(CAPTURES / "resnet50_w4_a.json.gz")
    parts = idle_of(found.events, found.launches, found.host)
    assert parts.loader_ns < 0.05 * parts.total_ns


def test_parts_add_up_though_events_of_no_length_lie_on_the_edges(tmp_path):
    """A set of memory of 0 us stands before all else, and another one behind."""
    work = [kernel(0, 0, correlation=1), kernel(20, 10, correlation=2), kernel(50, 0, correlation=3)]
    capture = kineto.read(written(tmp_path, [*work, launch(10, 2)]))
    found = idle_of(capture.events, capture.launches, capture.host)
    assert found.total_ns == break_down(capture.events).idle_ns == 40_000
    assert sum(found.causes_ns.values()) == 40_000
    assert (found.host_ns, found.device_ns, found.unknown_ns) == (10_000, 10_000, 20_000)
    empty = kineto.read(written(tmp_path, [kernel(0, 0), kernel(7, 0)]))
    assert idle_of(empty.events, empty.launches, empty.host).unknown_ns == 7_000
