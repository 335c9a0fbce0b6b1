"""Other programs on the machine make findings about time less certain."""

from __future__ import annotations

import pytest
from tests.explain.build import RunFolder, histogram, loader, meter, plain

from paceline.explain.diagnose import diagnose
from paceline.explain.model import Finding


def findings(folder: RunFolder, **gauges: float) -> dict[str, Finding]:
    return {f.code: f for f in diagnose(folder.launch().gauges(**gauges).read()).findings}


def serial(tmp_path, contention: float, wait: float = 10, **ticks: float) -> RunFolder:
    """Steps of 10 ms of work that wait for a loader without workers."""
    one = loader(num_workers=0, meter=meter(100, wait / 1e3, 0.001))
    rows = plain(101, wait=wait, fetch_cpu=1.0)
    return RunFolder(tmp_path).rank(rows, summary={"loaders": [one]}, contention=contention, **ticks)


@pytest.mark.parametrize(
    "contention, others, confidence",
    [(0.0, 0.0, "high"), (0.0, 1.5, "high"), (0.15, 1.5, "medium"), (0.4, 1.5, "low"), (0.4, 0.0, "high")],
)
def test_confidence_falls_with_the_time_that_others_took(tmp_path, contention, others, confidence):
    """Half of each step is waiting for data; the thread waits for a core during `contention` of the time."""
    found = findings(serial(tmp_path, contention), own_cpu_cores=0.5, other_cpu_cores=others)
    assert found["DATA001"].confidence == confidence
    assert ("waited for a CPU core" in found["DATA001"].evidence[-1].text) == (confidence != "high")


def test_without_readings_of_the_host_any_waiting_counts(tmp_path):
    found = diagnose(serial(tmp_path, 0.4).launch().read()).findings
    assert next(f for f in found if f.code == "DATA001").confidence == "low"


def test_a_cpu_quota_counts_as_others(tmp_path):
    gauges = {"own_cpu_cores": 1.0, "other_cpu_cores": 0.0, "cgroup_throttled_share": 0.3}
    assert findings(serial(tmp_path, 0.4), **gauges)["DATA001"].confidence == "low"


def test_workers_that_wait_for_a_core_count_for_loaders_only(tmp_path):
    hot = [{"slot": "other", "side": "host", "function": "log (train.py:9)", "count": 5, "leaf": None}]
    summary = {"loaders": [loader(num_workers=2)], "hot": hot}
    folder = RunFolder(tmp_path).rank(plain(101, wait=10, other=10), summary=summary)
    counters = meter(50, 0.04, 0.02, histogram=histogram(*[0.04] * 50))
    for number in range(2):
        folder.worker(number, counters, runnable_s=0.9)
    found = findings(folder, own_cpu_cores=1.0, other_cpu_cores=1.0)
    loading = [f for code, f in found.items() if code.startswith("DATA")]
    assert loading
    assert all(f.confidence == "low" for f in loading)
    assert found["RUN006"].confidence == "medium"


def test_what_was_measured_without_a_clock_stays_certain(tmp_path):
    rows = plain(60, loss=float("nan"))
    folder = RunFolder(tmp_path).rank(rows, contention=1.0)
    assert findings(folder, own_cpu_cores=0.5, other_cpu_cores=1.5)["CONV001"].confidence == "high"


def test_contention_is_the_verdict_although_other_findings_share_its_time(tmp_path):
    """Steps wait for data during most of the time, and for a core during nearly all of it."""
    folder = serial(tmp_path, 3.0, wait=80, cores=0.1)
    found = diagnose(folder.launch().gauges(own_cpu_cores=0.25, other_cpu_cores=1.7).read())
    assert {"HOST003", "DATA001"} <= {f.code for f in found.findings}
    assert found.verdict == "cpu-contended"
