"""What captures show of what holds a run back: real ones whose cause is known, and hand-made ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.traces.test_kineto import kernel, written

from paceline.explain.model import Finding
from paceline.explain.traced import findings_in
from paceline.traces.many import files_in, read_all
from paceline.traces.summary import Wanted

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
        ("diff_test*", "XFER001", [1]),
        ("b200_eager*", "COMP002", [0]),
    ],
)
def test_the_verdict_of_real_captures(name, verdict, ranks):
    found = findings(*sorted(CAPTURES.glob(f"{name}.gz")))
    assert next(iter(found)) == verdict
    assert list(found[verdict].ranks) == ranks
    assert found[verdict].evidence
    assert found[verdict].gain.high > 1


def test_copies_from_pinned_memory_are_not_told_to_be_pinned():
    found = findings(CAPTURES / "diff_test.json.gz")["XFER001"]
    assert "loader.pin_memory" not in {remedy.id for remedy in found.remedies}


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
