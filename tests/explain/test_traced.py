"""What captures show of what holds a run back: real ones whose cause is known, and hand-made ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.traces.read.test_kineto import kernel, written

from paceline.explain.model import Finding
from paceline.explain.traced import findings_in
from paceline.traces.analyze.ranks import Wanted, read_all
from paceline.traces.read.files import files_in

CAPTURES = Path(__file__).parents[1] / "traces" / "captures"


def findings(*paths: Path) -> dict[str, Finding]:
    """Findings by code, the verdict's first."""
    return {one.code: one for one in findings_in(read_all(files_in(paths), Wanted(), 1))}


def launched(ts: float, dur: float, at: float, number: int, name: str = "sgemm", **args: Any) -> list[dict[str, Any]]:
    """A kernel, and its launch on the host."""
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at, "dur": 1}
    return [kernel(ts, dur, name, correlation=number, **args), {**call, "args": {"correlation": number}}]


def host_range(ts: float, dur: float, name: str, cat: str = "user_annotation") -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": {}}


@pytest.mark.parametrize(
    "name, verdict, ranks",
    [
        ("dlrm8_*", "COMM002", [7]),
        ("diff_test*", "COMM001", [1]),
        ("b200_eager*", "COMP002", [0]),
    ],
)
def test_the_verdict_of_real_captures(name, verdict, ranks):
    found = findings(*sorted(CAPTURES.glob(f"{name}.gz")))
    assert next(iter(found)) == verdict
    assert list(found[verdict].ranks) == ranks
    assert found[verdict].evidence
    assert found[verdict].gain.high > 1


def copy(ts: float, dur: float, at: float, number: int, name: str) -> list[dict[str, Any]]:
    work, call = launched(ts, dur, at, number, name)
    return [{**work, "cat": "gpu_memcpy"}, call]


def copied(name: str) -> list[dict[str, Any]]:
    """Ten times a kernel of 100 us and a copy of 100 us, launched far ahead: one waits for the other."""
    events = []
    for step in range(10):
        events += launched(200 * step + 100, 100, step, 2 * step)
        events += copy(200 * step + 200, 100, step + 0.5, 2 * step + 1, name)
    return events


def test_copies_from_pinned_memory_are_not_told_to_be_pinned(tmp_path):
    found = findings(written(tmp_path, copied("Memcpy HtoD (Pinned -> Device)")))["XFER001"]
    assert "loader.pin_memory" not in {remedy.id for remedy in found.remedies}
    assert found.gain.high == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("name", ["Memcpy DtoD (Device -> Device)", "Memset (Device)"])
def test_copies_within_a_gpu_do_not_delay_training_for_a_loader(tmp_path, name):
    assert "XFER001" not in findings(written(tmp_path, copied(name)))


def test_communication_is_no_finding_where_the_gpu_would_wait_for_the_host_instead(tmp_path):
    """The host launches something every 300 us, and the GPU is done with it before: a replay gains nothing."""
    reduce, events = "ncclDevKernel_AllReduce_Sum_f32_RING_LL", []
    for step in range(20):
        events += launched(600 * step + 10, 150, 600 * step, 2 * step)
        events += launched(600 * step + 310, 150, 600 * step + 300, 2 * step + 1, reduce)
    found = findings(written(tmp_path, events))
    assert "COMM001" not in found
    assert next(iter(found)) == "COMP009"  # long kernels: what the host does is not in the capture


def test_one_kernel_of_a_long_capture_is_not_compute_bound(tmp_path):
    """13 s on the host, and a kernel at the end of it."""
    events = [host_range(0, 13e6, "load the data"), *launched(12.9e6, 50_000, 12.89e6, 1)]
    found = findings(written(tmp_path, events))
    assert list(found) == ["COMP009"]
    assert found["COMP009"].time_share == pytest.approx(0.996, abs=1e-3)
    assert found["COMP009"].gain is None
    assert "before the first" in found["COMP009"].evidence[0].text


def test_idle_time_that_another_finding_explains_is_not_told_twice(tmp_path):
    wait = host_range(115, 80, "cudaStreamSynchronize", "cuda_runtime")
    assert "COMP009" not in findings(written(tmp_path, [*launched(10, 100, 0, 1), wait, *launched(210, 100, 205, 2)]))


@pytest.mark.parametrize(
    "iterator, code", [("_SingleProcessDataLoaderIter", "DATA001"), ("_MultiProcessingDataLoaderIter", "DATA004")]
)
def test_a_gpu_that_is_idle_while_a_batch_is_fetched(tmp_path, iterator, code):
    """Two kernels of 100 us, and 300 us between them, in 250 of which a batch is fetched."""
    fetch = host_range(120, 250, f"enumerate(DataLoader)#{iterator}.__next__")
    found = findings(written(tmp_path, [*launched(10, 100, 0, 1), fetch, *launched(410, 100, 400, 2)]))
    assert next(iter(found)) == code
    assert found[code].time_share == pytest.approx(0.5)
    assert found[code].confidence == ("high" if code == "DATA001" else "low")


def test_a_gpu_that_is_idle_while_the_host_waits_for_it(tmp_path):
    wait = host_range(115, 80, "cudaStreamSynchronize", "cuda_runtime")
    found = findings(written(tmp_path, [*launched(10, 100, 0, 1), wait, *launched(210, 100, 205, 2)]))
    assert next(iter(found)) == "COMP003"
    assert found["COMP003"].time_share == pytest.approx(80 / 300)


def test_communication_that_nothing_hides_and_some_that_is_hidden(tmp_path):
    reduce = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    bare = [*launched(0, 100, 0, 1), *launched(100, 50, 1, 2, reduce), *launched(150, 100, 2, 3)]
    assert next(iter(findings(written(tmp_path, bare)))) == "COMM001"
    hidden = [*launched(0, 200, 0, 1), *launched(100, 50, 1, 2, reduce), *launched(200, 100, 2, 3)]
    assert set(findings(written(tmp_path, hidden))) == {"COMP001"}


def test_long_kernels_are_not_launch_bound(tmp_path):
    events = [*launched(0, 1000, 0, 1), *launched(1400, 1000, 1390, 2)]
    assert "COMP002" not in findings(written(tmp_path, events))


def test_of_nothing_nothing_is_found(tmp_path):
    assert findings(written(tmp_path, [])) == {}


def test_without_kernels_nobody_is_launch_bound(tmp_path):
    """A capture of copies alone does not show whether kernels are short."""
    events = []
    for step in range(20):
        events += launched(100 * step + 4, 5, 100 * step, step, "Memcpy HtoD (Pinned -> Device)")
    copies = [{**event, "cat": event["cat"].replace("kernel", "gpu_memcpy")} for event in events]
    assert "COMP002" not in findings(written(tmp_path, copies))
    assert "COMP002" in findings(written(tmp_path, [*copies, *launched(3000, 5, 2996, 99)]))
