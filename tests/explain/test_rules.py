"""Each finding on both sides of what decides it, on run folders written by hand."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from tests.explain.build import (
    FIRST_NS,
    RunFolder,
    S,
    histogram,
    loader,
    meter,
    plain,
    step,
    steps,
    training,
    two_ranks,
)
from tests.explain.gpu_run import gpu_run

from paceline.explain.analysis.run_analysis import RunAnalysis
from paceline.explain.model import Finding
from paceline.explain.rules import all_rules
from paceline.explain.verdict import ordered
from paceline.record.layout import FLAG_EPOCH, FLAG_FRESH, FLAG_PROFILED

MIB = 2.0**20


def found(analysis: RunAnalysis) -> dict[str, Finding]:
    """All findings, by code; what must hold of every one of them is checked."""
    findings = {rule.code: rule.check(analysis) for rule in all_rules() if rule.check is not None}
    return {code: check_form(finding, code) for code, finding in findings.items() if finding is not None}


def check_form(finding: Finding, code: str) -> Finding:
    assert finding.code == code
    assert finding.summary
    assert not finding.summary.endswith(".")
    assert finding.evidence
    assert finding.ranks
    assert finding.time_share is None or 0 <= finding.time_share <= 1 + 1e-9
    gains = [finding.gain, *(remedy.gain for remedy in finding.remedies)]
    assert all(gain is None or 1.0 <= gain.low <= gain.high < 1000 for gain in gains)
    for evidence in finding.evidence:
        assert evidence.unit
        assert evidence.value is None or math.isfinite(evidence.value)
        assert "nan" not in evidence.text.lower().split()
        assert re.search(r"\d", evidence.text)
    assert all(remedy.change and re.fullmatch(r"[a-z]+\.[a-z_0-9]+", remedy.id) for remedy in finding.remedies)
    return finding


def remedies(finding: Finding) -> list[str]:
    return [remedy.id for remedy in finding.remedies]


def of_rows(tmp_path, rows, *, header=None, gauges=None, launch=None, **rank) -> dict[str, Finding]:
    """What is found in a run of one rank with these steps."""
    folder = RunFolder(tmp_path).rank(rows, **rank)
    folder.gauges(header=header, **(gauges or {}))
    folder.launch(**(launch or {}))
    return found(folder.facts())


def served(
    tmp_path, rows, counters, *, header=None, gauges=None, own=0.5, settings=None, **worker
) -> dict[str, Finding]:
    """What is found in a run whose two workers counted this each."""
    folder = RunFolder(tmp_path).rank(rows, summary={"loaders": [loader(**(settings or {}))]}, cores=own)
    for number in range(2):
        folder.worker(number, counters, **worker)
    return found(folder.gauges(header=header, **(gauges or {})).facts())


# -- data --------------------------------------------------------------------------------------------


def serial(tmp_path, wait: float, cpu_s: float = 0.001, cores: float = 2.0, **changes) -> dict[str, Finding]:
    one = loader(num_workers=0, meter=meter(100, wait / 1e3, cpu_s), **changes)
    rows = plain(101, wait=wait, fetch_cpu=cpu_s * 1e3)
    return of_rows(tmp_path, rows, summary={"loaders": [one]}, cores=0.3, header={"allowed_cores": cores})


@pytest.mark.parametrize("wait, there", [(0.5, False), (0.56, True)])
def test_data001_loader_serial(tmp_path, wait, there):
    assert ("DATA001" in serial(tmp_path, wait)) == there


def test_data001_proposes_workers_that_hide_the_wait(tmp_path):
    finding = serial(tmp_path, 30)["DATA001"]
    assert finding.severity == "critical"
    assert finding.time_share == pytest.approx(0.75)
    assert finding.remedies[0].change == "DataLoader(num_workers=3, persistent_workers=True)"
    assert finding.gain.high == pytest.approx(4.0, rel=0.05)


def test_data001_on_a_single_core_promises_nothing_for_samples_that_burn(tmp_path):
    finding = serial(tmp_path, 30, cpu_s=0.030, cores=0.35)["DATA001"]
    assert "loader.workers" not in remedies(finding)


def test_data001_of_a_reader_by_hand(tmp_path):
    counted = [{"slot": "gap", "side": "input", "count": 50}]
    finding = of_rows(tmp_path, plain(60, gap=10, fetches=0), summary={"samples": counted})["DATA001"]
    assert finding.time_share == pytest.approx(0.5)
    assert remedies(finding) == ["loader.background", "loader.decode"]
    assert finding.gain.high == pytest.approx(2.0, rel=0.01)  # one thread, and no more


def behind(ms: float, leaf: str | None = "Condition.wait (threading.py:327)") -> dict[str, Any]:
    """A reader by hand that so many ms of each step waits, and where."""
    hot = [{"slot": "gap", "side": "input", "function": "main (train.py:9)", "count": 50, "leaf": leaf}]
    counted = [{"slot": "gap", "side": "input", "count": 50}]
    return {"rows": plain(60, gap=ms, fetches=0), "summary": {"samples": counted, "hot": hot}}


@pytest.mark.parametrize(
    "leaf, cores, code",
    [(None, 2.0, "DATA001"), (behind(1)["summary"]["hot"][0]["leaf"], 2.0, "DATA004")]
    + [("Connection._recv (connection.py:383)", 0.5, "DATA002")],
)
def test_a_reader_by_hand_that_waits_for_a_thread_is_no_serial_one(tmp_path, leaf, cores, code):
    findings = of_rows(tmp_path, **behind(30, leaf), header={"allowed_cores": cores}, cores=0.45)
    assert {c for c in findings if c.startswith("DATA")} == {code}


@pytest.mark.parametrize("cpu_s, code", [(0.002, "DATA003"), (0.03, "DATA004")])
def test_a_loader_that_a_thread_iterates_gets_workers(tmp_path, cpu_s, code):
    """A thread fills a queue from a DataLoader without workers; the training thread waits for the queue."""
    told = behind(30)
    one = loader(num_workers=0, train_fetches=0, train_wait_s=0.0, thread_fetches=60, meter=meter(60, 0.04, cpu_s))
    findings = of_rows(tmp_path, told["rows"], summary={**told["summary"], "loaders": [one]}, cores=0.3)
    assert {c for c in findings if c.startswith("DATA")} == {code}
    assert findings[code].remedies[0].id == "loader.workers"
    assert "in the thread that iterates the loader" in findings[code].remedies[0].change


def test_a_loader_that_a_thread_iterates_for_something_else_is_not_blamed(tmp_path):
    """The training thread makes its batches itself."""
    told = behind(30, leaf=None)
    one = loader(num_workers=0, train_fetches=0, train_wait_s=0.0, thread_fetches=60, meter=meter(60, 0.04, 0.002))
    findings = of_rows(tmp_path, told["rows"], summary={**told["summary"], "loaders": [one]})
    assert remedies(findings["DATA001"])[0] == "loader.background"


def test_data004_of_a_reader_by_hand_proposes_a_multiple(tmp_path):
    finding = of_rows(tmp_path, **behind(30), cores=0.2)["DATA004"]
    assert finding.remedies[0].id == "loader.background"
    assert "4 times as many" in finding.remedies[0].change
    assert finding.gain.high == pytest.approx(4.0, rel=0.01)
    assert "0 workers" not in finding.summary


def test_data001_of_a_loader_for_each_client_counts_the_start_of_its_workers(tmp_path):
    """A loader of five batches of 1 ms each is no work for processes that take longer to start."""
    one = {"num_workers": 0, "train_fetches": 5, "train_wait_s": 0.005, "meter": meter(5, 0.001, 0.001)}
    rows = plain(101, wait=1, forward=0.5, backward=0.5, optimizer=0.1, fetch_cpu=1.0)
    made = of_rows(tmp_path, rows, summary={"loaders": [loader(**one) for _ in range(20)]})["DATA001"]
    once = of_rows(tmp_path / "once", rows, summary={"loaders": [loader(**one)]})["DATA001"]
    assert "loader.workers" not in remedies(made)
    assert "loader.workers" in remedies(once)


def test_data001_of_tensors_proposes_whole_batches(tmp_path):
    one = loader(num_workers=0, dataset="TensorDataset", sampler="RandomSampler", meter=meter(100, 0.001, 0.001))
    rows = plain(101, wait=1, forward=0.5, backward=0.5, optimizer=0.1, fetch_cpu=1.0)
    finding = of_rows(tmp_path, rows, summary={"loaders": [one]})["DATA001"]
    change = next(r for r in finding.remedies if r.id == "loader.whole_batches")
    assert "BatchSampler(RandomSampler(dataset), 8, False)" in change.change
    assert change.safety == "exact"


@pytest.mark.parametrize("samples, confidence", [(50, "high"), (12, "medium"), (3, "low")])
def test_data001_of_a_reader_by_hand_is_as_sure_as_there_are_stack_samples(tmp_path, samples, confidence):
    counted = [{"slot": "gap", "side": "input", "count": samples}]
    finding = of_rows(tmp_path, plain(60, gap=10, fetches=0), summary={"samples": counted})["DATA001"]
    assert finding.confidence == confidence


def test_data001_is_critical_only_if_a_change_is_sure_to_help(tmp_path):
    """Samples that burn one of two cores: workers may gain little or nothing."""
    assert serial(tmp_path, 4, cpu_s=0.004)["DATA001"].severity == "warning"
    assert serial(tmp_path / "waits", 30)["DATA001"].severity == "critical"


def test_data001_is_not_said_of_workers(tmp_path):
    assert "DATA001" not in served(tmp_path, plain(100, wait=10), meter(50, 0.04, 0.001))


def sleep(tmp_path, **more) -> dict[str, Finding]:
    """20 ms a step; a batch takes a worker 40 ms, of which it computes 1."""
    return served(tmp_path, plain(100, wait=10), meter(50, 0.040, 0.001), **more)


def burn(tmp_path, **more) -> dict[str, Finding]:
    """25 ms a step; a batch takes a worker 40 ms, and it computes all the time."""
    return served(tmp_path, plain(100, wait=15), meter(50, 0.040, 0.040), own=0.4, **more)


def test_samples_that_wait_and_samples_that_burn_are_told_apart(tmp_path):
    """The same symptom, and more workers are right for one of them only."""
    waits, burns = sleep(tmp_path / "sleep"), burn(tmp_path / "burn")
    assert {code for code in waits if code.startswith("DATA")} == {"DATA003"}
    assert {code for code in burns if code.startswith("DATA")} == {"DATA002"}
    assert remedies(waits["DATA003"])[0] == "loader.workers"
    assert waits["DATA003"].remedies[0].change == (
        "use DataLoader(num_workers=4) instead of 2 workers; blocked workers use no CPU core"
    )
    assert waits["DATA003"].gain.high == pytest.approx(2.0, rel=0.01)
    assert "loader.workers" not in remedies(burns["DATA002"])
    assert all("num_workers" not in remedy.change for remedy in burns["DATA002"].remedies)


def cached(tmp_path, *, second_epoch_ms: float | None = 1250, **changes) -> Finding:
    """As `burn`: 25 ms a step, of which 15 are waiting, and the program computes for 8."""
    notes = [{"kind": "epoch", "loader": 0, "time_ns": FIRST_NS, "base_seed": 1}]
    if second_epoch_ms is not None:
        notes.append({**notes[0], "time_ns": FIRST_NS + int(second_epoch_ms * 1e6)})
    folder = RunFolder(tmp_path).rank(plain(100, wait=15), summary={"loaders": [loader()]}, notes=notes, cores=0.4)
    for number in range(2):
        folder.worker(number, {**meter(50, 0.040, 0.040), "draws_random": False, **changes}, base_seed=1)
    return found(folder.gauges().facts())["DATA002"]


def test_data002_expects_of_cached_samples_more_than_the_waiting_in_many_epochs(tmp_path):
    """Without workers on all cores computing is faster too: more than the waiting can be gained."""
    (finding,) = ordered([cached(tmp_path, second_epoch_ms=125)], {"data_wait": 0.6, "forward": 0.4})
    assert remedies(finding)[0] == "loader.cache"
    assert finding.gain.basis == "model"
    assert finding.gain.high > 1 / (1 - finding.time_share) > finding.gain.low > 1.2


@pytest.mark.parametrize(("second_epoch_ms", "epochs"), [(1250, 2), (500, 5)])
def test_data002_expects_of_cached_samples_no_gain_in_the_first_epoch(tmp_path, second_epoch_ms, epochs):
    cache = next(r for r in cached(tmp_path, second_epoch_ms=second_epoch_ms).remedies if r.id == "loader.cache")
    assert 1 < cache.gain.low < cache.gain.high < epochs


def of_threads(tmp_path, rows, **counters) -> set[str]:
    """The findings on data of a run whose loader has two threads in place of workers."""
    one = loader(num_workers=0, threads=2, meter={**meter(100, 0.040, 0.010), **counters})
    findings = of_rows(tmp_path, rows, summary={"loaders": [one]}, cores=0.3, header={"allowed_cores": 8.0})
    return {code for code in findings if code.startswith("DATA")}


def test_threads_of_a_loader_are_no_workers_that_could_be_kept(tmp_path):
    assert "DATA006" not in of_threads(tmp_path, epochs(200))


def test_threads_that_wait_for_a_core_do_not_need_more_threads(tmp_path):
    rows = plain(100, wait=15)
    assert "DATA004" in of_threads(tmp_path / "computing", rows, cpu_s=4.0, runnable_s=0.0)
    assert "DATA004" not in of_threads(tmp_path / "waiting", rows, cpu_s=1.6, runnable_s=2.4)


@pytest.mark.parametrize("changes", [{"second_epoch_ms": None}, {"draws_random": True}], ids=["one epoch", "draws"])
def test_data002_expects_nothing_of_a_cache_for_samples_that_may_not_come_again(tmp_path, changes):
    cache = next(r for r in cached(tmp_path, **changes).remedies if r.id == "loader.cache")
    assert cache.gain.basis == "assumed"


@pytest.mark.parametrize("cores, code", [(2.0, "DATA002"), (2.4, "DATA002"), (2.7, "DATA004"), (8.0, "DATA004")])
def test_data002_becomes_data004_where_cores_are_free(tmp_path, cores, code):
    """40 ms of making and 10 of training in steps of 25: 2 cores; a fifth has to be free."""
    findings = burn(tmp_path, header={"allowed_cores": cores})
    assert {c for c in findings if c.startswith("DATA")} == {code}


def test_data004_proposes_the_fewest_workers_that_do(tmp_path):
    finding = burn(tmp_path, header={"allowed_cores": 16.0})["DATA004"]
    assert remedies(finding) == ["loader.workers"]
    assert finding.remedies[0].change == "use DataLoader(num_workers=4) instead of 2 workers"
    assert finding.time_share == pytest.approx(0.6)


def test_data004_is_not_said_where_workers_wait_for_a_core(tmp_path):
    """A neighbour takes the cores: they look free in our own demand only."""
    rows = plain(100, wait=15)
    findings = served(tmp_path, rows, meter(50, 0.040, 0.025), own=0.4, header={"allowed_cores": 8.0}, runnable_s=0.6)
    assert {c for c in findings if c.startswith("DATA")} == {"DATA002"}


@pytest.mark.parametrize("pressure, workers", [(0.55, True), (0.65, False)])
def test_data003_proposes_no_workers_where_storage_is_saturated(tmp_path, pressure, workers):
    finding = sleep(tmp_path, gauges={"pressure_io_some_share": pressure})["DATA003"]
    assert ("loader.workers" in remedies(finding)) == workers
    assert remedies(finding)[-1] == "loader.shards"


@pytest.mark.parametrize("code, make", [("DATA002", burn), ("DATA003", sleep)])
def test_evidence_says_how_workers_spend_their_time(tmp_path, code, make):
    text = " ".join(e.text for e in make(tmp_path)[code].evidence)
    assert "of the loading time was spent computing" in text
    assert "blocked" in text


@pytest.mark.parametrize("wait", [0.0, 0.5])
def test_no_finding_about_workers_where_nothing_waits(tmp_path, wait):
    findings = served(tmp_path, plain(100, wait=wait), meter(50, 0.040, 0.001))
    assert not [code for code in findings if code.startswith("DATA")]


@pytest.mark.parametrize("collate, there", [(0.50, False), (0.60, True)])
def test_data005_loader_transport_bound(tmp_path, collate, there):
    counters = meter(50, 0.040, 0.030, collate_s=2.0 * collate)
    findings = served(tmp_path, plain(100, wait=10), counters, settings={"collate_fn": "pad_all"})
    assert ("DATA005" in findings) == there
    assert ("DATA002" in findings or "DATA004" in findings) == (not there)
    if there:
        assert remedies(findings["DATA005"])[0] == "loader.collate"
        assert "pad_all" in findings["DATA005"].remedies[0].change


def test_data005_for_batches_that_are_large_to_hand_over(tmp_path):
    finding = served(tmp_path, plain(100, wait=10), meter(50, 0.010, 0.008), hand_over_cpu_s=0.7)["DATA005"]
    assert remedies(finding)[0] == "loader.small_dtype"


def epochs(first_ms: float, count: int = 120, length: int = 10) -> list[dict[str, object]]:
    rows = plain(count, wait=0.1)
    for number in range(0, count, length):
        rows[number] = {**rows[number], "data_wait": first_ms, "flags": FLAG_FRESH | FLAG_EPOCH}
    return rows


@pytest.mark.parametrize("first_ms, there", [(8, False), (11, True), (200, True)])
def test_data006_loader_restart(tmp_path, first_ms, there):
    findings = served(tmp_path, epochs(first_ms), meter(60, 0.004, 0.004))
    assert ("DATA006" in findings) == there
    assert not {"DATA002", "DATA003", "DATA004", "DATA008"} & set(findings)
    if there:
        assert "11 times" in findings["DATA006"].evidence[1].text


def test_data006_takes_off_the_first_batch_which_has_to_be_made_anyway(tmp_path):
    """A first batch that takes 50 ms where making a batch takes 45 ms: kept workers save 5 ms an epoch."""
    assert "DATA006" not in served(tmp_path, epochs(50), meter(60, 0.045, 0.045))
    finding = served(tmp_path / "slow", epochs(200), meter(60, 0.045, 0.045))["DATA006"]
    truth = 10 * 10.1 + 199.9, 10 * 10.1 + 45
    assert finding.gain.high == pytest.approx(truth[0] / truth[1], rel=0.03)


@pytest.mark.parametrize("sampler, there", [("RandomSampler", True), ("SequentialSampler", False)])
def test_data006_says_that_kept_workers_change_the_order_where_it_is_shuffled(tmp_path, sampler, there):
    finding = served(tmp_path, epochs(200), meter(60, 0.045, 0.045), settings={"sampler": sampler})["DATA006"]
    assert ("changes the shuffled order" in finding.remedies[0].change) == there


def test_data006_is_not_said_of_workers_that_are_kept(tmp_path):
    kept = {"persistent_workers": True}
    assert "DATA006" not in served(tmp_path, epochs(200), meter(60, 0.004, 0.004), settings=kept)


def test_data006_takes_two_restarts(tmp_path):
    assert "DATA006" not in served(tmp_path, epochs(500, length=60), meter(60, 0.004, 0.004))


@pytest.mark.parametrize(
    "calls, size, system, there",
    [(2.0, 4_000, 0.45, True), (1.5, 4_000, 0.45, False), (2.0, 300_000, 0.45, False), (2.0, 4_000, 0.35, False)],
)
def test_data007_small_reads(tmp_path, calls, size, system, there):
    counters = meter(50, 0.040, 0.030)
    asked = counters["samples"] * calls * size
    read = {
        "read_calls": counters["samples"] * calls,
        "asked_bytes": asked,
        "read_bytes": 0.0,
        "system_s": 2.0 * system,
    }
    findings = served(tmp_path, plain(100, wait=10), counters, header={"allowed_cores": 8.0}, **read)
    assert ("DATA007" in findings) == there


def test_data007_where_the_kernel_does_not_count(tmp_path):
    assert "DATA007" not in sleep(tmp_path)


@pytest.mark.parametrize("slow_every, there", [(12, True), (4, False)])
def test_data008_loader_jitter(tmp_path, slow_every, there):
    rows = plain(121, wait=0.1)
    for number in range(5, 121, slow_every):
        rows[number] = {**rows[number], "data_wait": 60}
    counters = meter(120, 0.02, 0.01, histogram=histogram(*[0.01] * 110, *[0.5] * 10))
    findings = served(tmp_path, rows, counters)
    assert ("DATA008" in findings) == there
    assert [c for c in findings if c.startswith("DATA")] != []
    if there:
        assert set(remedies(findings["DATA008"])) == {"loader.prefetch", "loader.in_order"}
        assert not {"DATA002", "DATA003", "DATA004"} & set(findings)


def test_data008_of_a_loader_without_workers_proposes_workers_with_a_long_queue(tmp_path):
    """One of twelve batches waits 120 ms for its data, the others 1 ms."""
    rows = plain(121, wait=1)
    for number in range(5, 121, 12):
        rows[number] = {**rows[number], "data_wait": 120}
    made = [0.12 if number % 12 == 5 else 0.001 for number in range(121)]
    counters = meter(121, float(np.mean(made)), 0.0005, histogram=histogram(*made))
    one = loader(num_workers=0, prefetch_factor=None, meter=counters)
    findings = of_rows(tmp_path, rows, summary={"loaders": [one]}, cores=0.5)
    jitter, serial = findings["DATA008"], findings["DATA001"]
    assert set(remedies(jitter)) == {"loader.prefetch", "loader.max_sample_size"}
    factor = int(re.search(r"prefetch_factor=(\d+)", jitter.remedies[0].change)[1])
    assert factor > 2
    assert serial.gain.high <= jitter.gain.high


@pytest.mark.parametrize("contention, there", [(0.0, True), (1.0, False)])
def test_data008_is_not_said_if_the_thread_waited_for_a_core_meanwhile(tmp_path, contention, there):
    """Without a loader, a step whose thread lost its core before the forward pass looks like a late batch."""
    rows = plain(121, wait=0.1, fetches=0)
    for number in range(5, 121, 12):
        rows[number] = {**rows[number], "data_wait": 60}
    findings = of_rows(tmp_path, rows, contention=contention, gauges={"own_cpu_cores": 0.5, "other_cpu_cores": 1.5})
    assert ("DATA008" in findings) == there


# -- computing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait, there", [(1.7, True), (1.8, False)])
def test_comp001_compute_bound(tmp_path, wait, there):
    findings = of_rows(tmp_path, plain(60, wait=wait))
    assert ("COMP001" in findings) == there
    if there:
        assert (findings["COMP001"].severity, findings["COMP001"].gain) == ("info", None)


@pytest.mark.parametrize("active, contention, there", [(0.9, 0.0, True), (0.5, 0.4, True), (0.35, 0.0, False)])
def test_comp001_is_not_said_of_a_thread_that_waits(tmp_path, active, contention, there):
    """In a forward pass too, a thread can wait for another one that computes in Python."""
    found = of_rows(tmp_path, plain(60), active=active, contention=contention)
    assert ("COMP001" in found) == there


@pytest.mark.parametrize(
    "active, meta, there",
    [(0.35, {}, True), (0.79, {}, True), (0.81, {}, False), (0.35, {"distributed": True}, False)],
)
def test_host004_thread_blocked(tmp_path, active, meta, there):
    hot = [{"slot": "forward", "side": "", "function": "wait (model.py:3)", "count": 9, "leaf": None}]
    found = of_rows(tmp_path, plain(60), active=active, meta=meta, summary={"hot": hot})
    assert ("HOST004" in found) == there
    if there:
        finding = found["HOST004"]
        assert (finding.confidence, remedies(finding)) == ("low", ["host.less_often"])
        assert finding.time_share == pytest.approx(1 - active, abs=0.01)
        assert "wait (model.py:3)" in finding.evidence[-1].text


@pytest.mark.parametrize(
    "system, faults_per_s, there",
    [
        (0.5, 500_000, True),  # 1 us each, 0.5 of the CPU time
        (0.08, 40_000, False),  # a small share
        (0.5, 20_000, False),  # 25 us each: the operating system does other work
        (1.0, 200_000, False),  # 5 us each
        (0.5, float("nan"), False),  # a record of before, or not Linux
    ],
)
def test_host005_page_faults(tmp_path, system, faults_per_s, there):
    found = of_rows(tmp_path, plain(60), system=system, faults_per_s=faults_per_s)
    assert ("HOST005" in found) == there
    if there:
        finding = found["HOST005"]
        assert remedies(finding) == ["memory.retain_host_memory"]
        assert finding.time_share == pytest.approx(0.5 * 0.95, abs=0.05)
        assert finding.gain.low == pytest.approx(1 / (1 - 0.7 * finding.time_share))
        assert finding.gain.high == pytest.approx(1 / (1 - 1.5 * finding.time_share))


def test_host005_of_several_ranks_promises_nothing_for_certain(tmp_path):
    found = of_rows(tmp_path, plain(60), system=0.5, faults_per_s=500_000, meta={"distributed": True})["HOST005"]
    assert (found.gain.low, found.gain.high > 1.5) == (1.0, True)


def test_host005_is_not_said_of_little_memory(tmp_path):
    """2,000 page faults per second take 8 MB per second, which is below 16 MB for each step."""
    assert "HOST005" not in of_rows(tmp_path, plain(60), system=0.2, faults_per_s=2_000, cores=0.05)


def test_host004_of_a_loader_in_a_thread_proposes_workers(tmp_path):
    own = loader(num_workers=0, thread_fetches=50)
    host = {"gauges": {"own_cpu_cores": 1.0, "other_cpu_cores": 0.0}, "header": {"allowed_cores": 2.0}}
    found = of_rows(tmp_path, plain(60), active=0.35, summary={"loaders": [own]}, **host)
    finding = found["HOST004"]
    assert (finding.confidence, remedies(finding)) == ("medium", ["loader.workers"])
    assert "loads batches" in finding.summary
    assert finding.gain.high == pytest.approx(2.0)  # 2.9 without the waiting, but workers need cores too


@pytest.mark.parametrize("host, there", [(6, False), (0, True)])
def test_few_stack_samples_between_steps_count_too(tmp_path, host, there):
    """Without stack samples, time before a forward pass counts as time to make its input."""
    counted = [{"slot": "gap", "side": "host", "count": host}]
    findings = of_rows(tmp_path, plain(60, gap=20, fetches=0), summary={"samples": counted})
    shares = {code: findings[code].time_share if code in findings else 0.0 for code in ("DATA001", "RUN006")}
    assert (shares["DATA001"] > shares["RUN006"]) == there


def window(tmp_path, operators: list[tuple[str, int, float]], wall_s: float = 0.040, **more) -> dict[str, Finding]:
    """Four steps of 10 ms were profiled: operators with their count and seconds."""
    named = [{"name": name, "count": count, "self_s": self_s} for name, count, self_s in operators]
    note = {"kind": "window", "steps": 4, "wall_s": wall_s, "operators": named, "flops_per_step": None}
    return of_rows(tmp_path, plain(60, **more), notes=[note])


@pytest.mark.parametrize(
    "count, self_s, there",
    [
        (4000, 0.036, True),  # 9 µs each
        (1200, 0.036, False),  # 30 µs each: the operators are the work
        (1200, 0.012, True),  # few and quick: the Python between them is
        (700, 0.036, False),
        (700, 0.007, False),  # under 200 a step
    ],
)
def test_comp002_launch_bound(tmp_path, count, self_s, there):
    assert ("COMP002" in window(tmp_path, [("aten::add", count, self_s)])) == there


def test_comp002_is_not_said_of_a_step_that_mostly_waits(tmp_path):
    assert "COMP002" not in window(tmp_path, [("aten::add", 4000, 0.036)], wait=20)


def test_operators_of_one_model_say_nothing_of_larger_ones_that_are_trained_later(tmp_path):
    """Ten profiled steps of a small model, then 60 steps of one that takes 60 times as long."""
    operators = [{"name": "aten::add", "count": 4000, "self_s": 0.036}]
    notes = [{"kind": "window", "steps": 4, "wall_s": 0.040, "operators": operators, "flops_per_step": None}]
    rows = [*plain(20), *plain(60, forward=180, backward=360)]
    for row in rows[10:14]:
        row["flags"] = FLAG_PROFILED
    assert "COMP002" in of_rows(tmp_path, rows, notes=notes)
    notes += [{"kind": "model", "step": step, "tensors": 6, "parameters": step} for step in (0, 20)]
    assert "COMP002" not in of_rows(tmp_path / "two", rows, notes=notes)


@pytest.mark.parametrize("part, there", [(0.45, False), (0.55, True)])
def test_comp006_bandwidth_bound(tmp_path, part, there):
    operators = [("aten::gelu", 40, 0.036 * part), ("aten::addmm", 40, 0.036 * (1 - part))]
    findings = window(tmp_path, operators)
    assert ("COMP006" in findings) == there
    if there:
        assert "gelu" in findings["COMP006"].evidence[0].text


def test_comp006_needs_operators_of_some_size(tmp_path):
    assert "COMP006" not in window(tmp_path, [("aten::gelu", 4000, 0.036)])


def test_no_finding_about_operators_without_a_window(tmp_path):
    assert not {"COMP002", "COMP006"} & set(of_rows(tmp_path, plain(60)))


ADAM = {"class": "Adam", "foreach": None, "fused": None, "tensors": 300, "parameters": 10**7, "device": "cpu"}


def optimized(tmp_path, optimizer_ms: float, *optimizers: dict[str, object]) -> dict[str, Finding]:
    return of_rows(tmp_path, plain(60, optimizer=optimizer_ms), summary={"optimizers": list(optimizers)})


@pytest.mark.parametrize("optimizer_ms, there", [(1.45, False), (1.75, True)])
def test_comp008_optimizer_unfused(tmp_path, optimizer_ms, there):
    findings = optimized(tmp_path, optimizer_ms, ADAM)
    assert ("COMP008" in findings) == there
    if there:
        assert remedies(findings["COMP008"])[0] == "optimizer.fused"


@pytest.mark.parametrize(
    "changes, there",
    [
        ({"fused": True}, False),
        ({"foreach": True}, False),
        ({"foreach": False}, True),
        ({"device": "cuda"}, False),
        ({"device": "cuda", "foreach": False}, True),
        ({"of_torch": True}, True),
        ({"of_torch": False}, False),
    ],
)
def test_comp008_is_about_how_the_optimizer_runs(tmp_path, changes, there):
    assert ("COMP008" in optimized(tmp_path, 5, ADAM | changes)) == there


def test_comp008_does_not_offer_what_an_optimizer_does_not_have(tmp_path):
    assert remedies(optimized(tmp_path, 5, ADAM | {"class": "RMSprop"})["COMP008"]) == ["optimizer.foreach"]


def test_comp008_without_an_optimizer(tmp_path):
    assert "COMP008" not in optimized(tmp_path, 5)


# -- memory ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "begin, grown, there",
    [
        (200 * MIB, 47 * MIB, False),
        (200 * MIB, 60 * MIB, True),
        (2000 * MIB, 150 * MIB, False),
        (2000 * MIB, 300 * MIB, True),
    ],
)
def test_mem002_memory_growing(tmp_path, begin, grown, there):
    # The first reading counts, taken when a twentieth has gone by.
    findings = of_rows(tmp_path, plain(200), unshared=lambda share: begin + grown * (share - 0.05) / 0.95)
    assert ("MEM002" in findings) == there
    if there:
        assert findings["MEM002"].gain is None
        assert findings["MEM002"].evidence[1].value == pytest.approx(grown / 190, rel=0.02)


def test_mem002_is_not_said_of_memory_that_was_filled_once(tmp_path):
    assert "MEM002" not in of_rows(tmp_path, plain(200), unshared=lambda share: 1e9 if share < 0.3 else 2e9)


def test_mem002_is_not_said_of_memory_that_goes_up_and_down(tmp_path):
    assert "MEM002" not in of_rows(tmp_path, plain(200), unshared=lambda share: 1e9 * (1 + 4.6 * share % 1))


def test_mem002_counts_no_reading_taken_at_the_programs_end(tmp_path):
    """What a program lets go when it is over has grown all the same."""
    findings = of_rows(tmp_path, plain(200), unshared=lambda share: 1e8 + (9e8 * share if share < 1 else 0))
    assert "MEM002" in findings


def test_mem002_tells_when_memory_is_full(tmp_path):
    finding = of_rows(
        tmp_path,
        plain(200),
        unshared=lambda share: 1e9 * share,
        header={"memory_limit_bytes": 2e9},
        gauges={"own_cpu_cores": 1},
    )["MEM002"]
    assert finding.evidence[2].value == pytest.approx(210, rel=0.02)  # from the last reading in training, at 95%
    assert finding.severity == "warning"


@pytest.mark.parametrize("limit, severity", [(1.5e9, "critical"), (4e9, "warning")])
def test_mem002_is_critical_only_if_memory_is_soon_full(tmp_path, limit, severity):
    finding = of_rows(
        tmp_path,
        plain(200),
        unshared=lambda share: 1e9 * share,
        header={"memory_limit_bytes": limit},
        gauges={"own_cpu_cores": 1},
    )["MEM002"]
    assert finding.severity == severity


def test_mem002_does_not_count_pages_of_files(tmp_path):
    """A memory-mapped dataset: resident memory grows, anonymous and shared memory does not."""
    assert "MEM002" not in of_rows(tmp_path, plain(200), rss=lambda share: 1e8 + 2e9 * share)


def test_mem002_is_not_said_of_scatter_within_steps(tmp_path):
    """Readings fall anywhere in a step: activations come and go by more than the slope of the line through them."""
    scatter = np.random.default_rng(3).uniform(0, 6e8, 30)
    findings = of_rows(tmp_path, plain(200), count=30, unshared=lambda share: 1e9 + float(scatter[round(share * 29)]))
    assert "MEM002" not in findings


def test_mem002_of_eight_readings(tmp_path):
    """200 steps that keep 4 MB each are over in two seconds."""
    assert "MEM002" in of_rows(tmp_path, plain(200), count=8, unshared=lambda share: 3e8 + 8e8 * share)


def test_mem002_does_not_count_what_the_profiler_window_takes(tmp_path):
    """Memory is flat before and after the window, and 300 MiB higher after it."""
    window = {"kind": "window", "time_ns": FIRST_NS + round(3.5 * S), "wall_s": 1.5, "failed": "closed early"}

    def unshared(share: float) -> float:
        return MIB * (200 + 300 * min(1.0, max(0.0, (share - 0.3) / 0.4)))

    notes = ({"kind": "end", "exception": None}, window)
    assert "MEM002" not in of_rows(tmp_path, plain(500), notes=notes, unshared=unshared)
    assert "MEM002" in of_rows(tmp_path / "own", plain(500), unshared=unshared)


def test_mem002_is_not_said_of_a_growth_that_has_ended(tmp_path):
    assert "MEM002" not in of_rows(tmp_path, plain(200), unshared=lambda share: 1e9 + 1e9 * min(1.0, 2 * share))


def test_mem002_of_a_device(tmp_path):
    finding = of_rows(tmp_path, plain(200), device=lambda share: 1e9 * share)["MEM002"]
    assert "device memory" in finding.summary


# -- ranks -------------------------------------------------------------------------------------------


def ranks(tmp_path, *rows) -> dict[str, Finding]:
    two_ranks(folder := RunFolder(tmp_path), list(rows))
    return found(folder.gauges().facts())


@pytest.mark.parametrize("blocked, there", [(0.7, False), (0.9, True), (4, True)])
def test_comm001_communication_exposed(tmp_path, blocked, there):
    rows = plain(60, backward_blocked=blocked)
    findings = ranks(tmp_path, rows, rows, rows)
    assert ("COMM001" in findings) == there
    assert "COMM002" not in findings


@pytest.mark.parametrize(
    "exchanges, synced, proposed",
    [
        (None, 0, "ddp.bucket_cap_mb"),  # a record of an earlier version
        ({"calls": {"wait": 60}, "sharded": False}, 1, "ddp.bucket_cap_mb"),
        ({"calls": {"all_gather_into_tensor": 240}, "sharded": True}, 0, "fsdp.keep_gathered"),
        ({"calls": {"batch_isend_irecv": 240}, "sharded": False}, 0, "pipeline.micro_batches"),
        ({"calls": {"all_reduce": 60}, "sharded": False}, 0, "batch.accumulate"),
    ],
)
def test_comm001_proposes_what_fits_the_exchange(tmp_path, exchanges, synced, proposed):
    rows = plain(60, communication=5, synced=synced)
    summary = {} if exchanges is None else {"exchanges": exchanges}
    two_ranks(folder := RunFolder(tmp_path), [rows, rows], summary=summary)
    proposals = remedies(found(folder.gauges().facts())["COMM001"])
    assert proposed in proposals
    assert any(one.startswith("ddp.") for one in proposals) == proposed.startswith("ddp.")


def test_comm001_is_not_said_of_one_process(tmp_path):
    assert "COMM001" not in of_rows(tmp_path, plain(60, communication=10))


def straggling(tmp_path, late_ms: float, **late) -> dict[str, Finding]:
    """Rank 2 is busy longer by this, and the others wait for it."""
    even = plain(60, communication=late_ms + 0.2)
    return ranks(tmp_path, even, even, plain(60, communication=0.2, **(late or {"wait": late_ms})))


@pytest.mark.parametrize("late_ms, there", [(0.7, False), (1.0, False), (1.4, True), (10, True)])
def test_comm002_rank_straggling(tmp_path, late_ms, there):
    findings = straggling(tmp_path, late_ms)
    assert ("COMM002" in findings) == there
    if there:
        assert findings["COMM002"].ranks == [2]
        assert "data_wait" in findings["COMM002"].summary
        assert "COMM001" not in findings


@pytest.mark.parametrize("first_wait, there", [(0.2, True), (5, False)])
def test_comm002_is_not_said_of_ranks_whose_batches_all_come_too_late(tmp_path, first_wait, there):
    """Each rank has a thread that makes a batch every 40 ms; which of them shows the wait says little."""
    first, second = behind(first_wait), behind(30)
    for row in first["rows"]:
        row["communication"] = 30 - first_wait
    folder = RunFolder(tmp_path)
    two_ranks(folder, [first["rows"], second["rows"]], summary=second["summary"], cores=0.1)
    findings = found(folder.gauges().facts())
    assert "DATA004" in findings
    assert ("COMM002" in findings) == there


@pytest.mark.parametrize("others, there", [(0.0, True), (1.5, False)])
def test_comm002_is_not_said_of_a_rank_that_other_programs_keep_from_the_cpu(tmp_path, others, there):
    folder = RunFolder(tmp_path)
    for number, (rows, contention) in enumerate([(plain(60, communication=10), 0.0), (plain(60, other=10), 0.5)]):
        folder.rank(rows, number, meta={"world": 2, "distributed": True}, contention=contention)
    findings = found(folder.gauges(own_cpu_cores=0.5, other_cpu_cores=others).facts())
    assert ("COMM002" in findings) == there


def test_comm002_names_the_phase_of_its_own(tmp_path):
    assert "in the other phase" in straggling(tmp_path, 10, other=10)["COMM002"].summary
    assert "in the forward phase" in straggling(tmp_path / "slow", 10, forward=13)["COMM002"].summary


def test_comm002_is_not_said_where_nobody_waits_for_the_slow_rank(tmp_path):
    """Ranks that share a host and a record, and no gradients."""
    assert "COMM002" not in ranks(tmp_path, plain(120), plain(120), plain(60, wait=10))


@pytest.mark.parametrize(
    "exchanges, communication, there", [(1.0, 5, False), (1.4, 5, False), (2.0, 5, True), (4.0, 0.1, False)]
)
def test_comm004_sync_each_microstep(tmp_path, exchanges, communication, there):
    summary = {"training": training(exchanges=exchanges)}
    rows = plain(60, micro_steps=4, synced=4, communication=communication)
    two_ranks(folder := RunFolder(tmp_path), [rows, rows], summary=summary)
    findings = found(folder.gauges().facts())
    assert ("COMM004" in findings) == there
    if there:
        assert "COMM001" not in findings
        assert remedies(findings["COMM004"]) == ["ddp.no_sync"]
        assert findings["COMM004"].time_share < communication / (10 + communication)
        assert "Net1" in findings["COMM004"].summary


def test_comm004_is_not_said_without_counts_of_each_module(tmp_path):
    """Two networks with an optimizer each exchange twice in a step: a record that only holds the sum says nothing."""
    rows = plain(60, micro_steps=2, synced=2, communication=5)
    assert "COMM004" not in ranks(tmp_path, rows, rows)


# -- the run -----------------------------------------------------------------------------------------


def now_and_then(phase: str, ms: float, every: int = 10, count: int = 101) -> list[dict[str, object]]:
    return steps(count, lambda n: {phase: ms if n % every == 5 else 0}, forward=3, backward=6, optimizer=1)


@pytest.mark.parametrize("ms, there", [(5.0, False), (5.6, True), (200, True)])
def test_run001_checkpoint_stall(tmp_path, ms, there):
    findings = of_rows(tmp_path, now_and_then("checkpoint", ms))
    assert ("RUN001" in findings) == there
    assert not {"RUN004", "RUN006", "DATA001"} & set(findings)
    if there:
        assert findings["RUN001"].evidence[1].value == 10
        assert findings["RUN001"].confidence == "high"


@pytest.mark.parametrize("ms, there", [(10.5, False), (11.8, True), (300, True)])
def test_run002_evaluation_heavy(tmp_path, ms, there):
    held = loader(train_fetches=0, train_wait_s=0.0, eval_fetches=250)
    findings = of_rows(tmp_path, now_and_then("evaluation", ms), summary={"loaders": [held]})
    assert ("RUN002" in findings) == there
    assert not {"RUN004", "RUN006", "DATA001"} & set(findings)
    if there:
        assert "250 batches" in findings["RUN002"].evidence[1].text


@pytest.mark.parametrize(
    "setup_s, wall_s, there",
    [(1.9, 3.0, False), (2.1, 4.0, True), (2.1, 9.0, False), (60.0, 230.0, True), (60.0, 250.0, False)],
)
def test_run003_startup_slow(tmp_path, setup_s, wall_s, there):
    meta = {"imported_ns": FIRST_NS - round(setup_s * S)}
    hot = [{"slot": "startup", "side": "", "function": "index (data.py:7)", "count": 40, "leaf": None}]
    findings = of_rows(tmp_path, plain(60), meta=meta, launch={"wall_s": wall_s}, summary={"hot": hot})
    assert ("RUN003" in findings) == there
    if there:
        assert "index (data.py:7)" in findings["RUN003"].evidence[1].text


def test_run003_leaves_imports_out(tmp_path):
    meta = {"imported_ns": FIRST_NS - 5 * S, "imports_ns": round(3.5 * S)}
    assert "RUN003" not in of_rows(tmp_path, plain(60), meta=meta, launch={"wall_s": 8.0})


def test_run003_waits_for_the_end_of_the_run(tmp_path):
    meta = {"imported_ns": FIRST_NS - 60 * S}
    assert "RUN003" not in of_rows(tmp_path, plain(60), meta=meta, launch={"exit_code": None})


def shapes(slow_ms: float, every: int = 10) -> list[dict[str, object]]:
    return steps(121, lambda n: {"backward": slow_ms if n % every == 5 else 6}, forward=3, optimizer=1)


@pytest.mark.parametrize("slow_ms, there", [(11, False), (16, False), (18.5, True), (60, True)])
def test_run004_step_jitter(tmp_path, slow_ms, there):
    findings = of_rows(tmp_path, shapes(slow_ms))
    assert ("RUN004" in findings) == there
    if there:
        assert "backward" in findings["RUN004"].evidence[1].text
        assert findings["RUN004"].confidence == "medium"
        assert "every 10th step" in findings["RUN004"].summary
        assert remedies(findings["RUN004"]) == ["host.less_often"]


def irregular(where, slow_ms: float = 60.0, count: int = 101) -> dict[str, object]:
    return steps(count, lambda n: {"backward": slow_ms if n in where else 6}, forward=3, optimizer=1)


def test_run004_of_inputs_of_many_shapes(tmp_path):
    finding = of_rows(tmp_path, irregular({3, 9, 24, 31, 47, 58, 60, 77, 79, 95}))["RUN004"]
    assert remedies(finding) == ["shapes.bucket", "host.gc"]
    assert finding.gain.low == 1.0


def test_run004_is_not_said_of_a_disturbance_that_comes_once(tmp_path):
    """A neighbor on the machine makes the steps of one stretch slow."""
    assert "RUN004" not in of_rows(tmp_path, irregular({40, 41, 43, 44, 46, 47, 49, 50, 52, 53}))


def test_run004_is_not_said_if_the_thread_waited_for_a_core_meanwhile(tmp_path):
    rows = irregular({3, 9, 24, 31, 47, 58, 60, 77, 79, 95})
    assert "RUN004" not in of_rows(tmp_path, rows, contention=0.5)


def test_run004_is_not_said_of_steps_on_more_samples(tmp_path):
    rows = irregular({3, 9, 24, 31, 47, 58, 60, 77, 79, 95})
    for row in rows:
        row["samples"] = 80.0 if row["backward"] == 60 else 8.0
    assert "RUN004" not in of_rows(tmp_path, rows)


@pytest.mark.parametrize("passes, there", [(10, True), (1, False)])
def test_run004_is_said_of_more_passes_over_samples_in_every_nth_step(tmp_path, passes, there):
    """A penalty adds passes to a step; one pass over more samples is a larger batch."""
    rows = shapes(60)
    for row in rows:
        row["samples"], row["micro_steps"] = (80.0, passes) if row["backward"] == 60 else (8.0, 1)
    assert ("RUN004" in of_rows(tmp_path, rows)) == there


def test_run004_is_less_sure_beside_a_busy_neighbour(tmp_path):
    finding = of_rows(tmp_path, shapes(60), gauges={"other_cpu_cores": 1.0})["RUN004"]
    assert finding.confidence in ("medium", "low")


def test_run004_is_not_for_waits(tmp_path):
    rows = now_and_then("data_wait", 300)
    assert "RUN004" not in of_rows(tmp_path, rows)


def growing(factor: float, count: int = 200) -> list[dict[str, object]]:
    return steps(count, lambda n: {"other": 10 * (factor - 1) * n / count}, forward=3, backward=6, optimizer=1)


@pytest.mark.parametrize("factor, there", [(1.25, False), (1.4, True), (4.0, True)])
def test_run005_throughput_drift(tmp_path, factor, there):
    findings = of_rows(tmp_path, growing(factor))
    assert ("RUN005" in findings) == there
    assert "RUN004" not in findings
    if there:
        assert "the other phase grew most" in findings["RUN005"].evidence[1].text


def of_sizes(*sizes: float) -> dict[str, Any]:
    """A program that trains one model after the other, each for 60 steps of so many times the work."""
    rows = [row for size in sizes for row in plain(60, forward=3 * size, backward=6 * size)]
    notes = [{"kind": "model", "step": 60 * n, "tensors": 6, "parameters": int(1000 * s)} for n, s in enumerate(sizes)]
    return {"rows": rows, "notes": notes}


def test_run005_is_not_said_of_models_that_get_larger(tmp_path):
    sizes = of_sizes(1, 1.5, 2, 3)
    assert "RUN005" not in of_rows(tmp_path, **sizes)
    assert "RUN005" in of_rows(tmp_path / "one", sizes["rows"])


def test_run005_of_one_of_several_models_gains_a_part_of_the_run(tmp_path):
    sizes = of_sizes(1, 1)
    notes = [*sizes["notes"], {"kind": "model", "step": 120, "tensors": 6, "parameters": 7}]
    grown = of_rows(tmp_path, [*sizes["rows"], *growing(3)], notes=notes)["RUN005"]
    alone = of_rows(tmp_path / "alone", growing(3))["RUN005"]
    assert grown.gain.low < alone.gain.low


def test_run004_is_not_said_of_models_of_two_sizes_in_turn(tmp_path):
    """Steps of a large model in every part of the run, in stretches."""
    rows = [row for _ in range(4) for size in (1, 1, 1, 1, 8) for row in plain(12, backward=6 * size)]
    notes = [{"kind": "model", "step": n * 12, "tensors": 6, "parameters": n} for n in range(20)]
    assert "RUN004" in of_rows(tmp_path, rows)
    assert "RUN004" not in of_rows(tmp_path / "models", rows, notes=notes)


def test_run005_takes_steps_enough(tmp_path):
    assert "RUN005" not in of_rows(tmp_path, growing(4.0, count=30))


def test_run005_is_not_said_of_a_jump(tmp_path):
    rows = steps(200, lambda n: {"forward": 3 if n < 100 else 13}, backward=6, optimizer=1)
    assert "RUN005" not in of_rows(tmp_path, rows)


@pytest.mark.parametrize("more, there", [(0.0, True), (1.0, False)])
def test_run005_is_not_said_of_steps_that_get_more_samples(tmp_path, more, there):
    rows = growing(2.0)
    for n, row in enumerate(rows):
        row["samples"] = 8 * (1 + more * n / len(rows))
    assert ("RUN005" in of_rows(tmp_path, rows)) == there


@pytest.mark.parametrize(
    "grown, there",
    [
        ({"forward": 3, "backward": 6, "optimizer": 1}, False),  # all by two: the machine
        ({"forward": 3, "backward": 6}, True),  # longer sequences: the update stays what it was
        ({"optimizer": 8}, True),
    ],
)
def test_run005_is_not_said_of_a_machine_that_gets_slower(tmp_path, grown, there):
    base = {"forward": 3.0, "backward": 6.0, "optimizer": 1.0}
    rows = steps(200, lambda n: {phase: base[phase] + more * n / 200 for phase, more in grown.items()}, **base)
    assert ("RUN005" in of_rows(tmp_path, rows)) == there


@pytest.mark.parametrize("ms, there", [(0.8, False), (0.95, True)])
def test_run006_host_code_heavy(tmp_path, ms, there):
    hot = [{"slot": "other", "side": "host", "function": "log (train.py:9)", "count": 30, "leaf": None}]
    findings = of_rows(tmp_path, plain(60, other=ms), summary={"hot": hot})
    assert ("RUN006" in findings) == there
    if there:
        assert "log (train.py:9)" in findings["RUN006"].summary
        assert findings["RUN006"].confidence == "high"


@pytest.mark.parametrize("every, there", [(20, True), (400, False)])
def test_run006_of_code_that_runs_after_few_steps(tmp_path, every, there):
    """Steps of 0.1 ms, and 30 ms of other code after every twentieth: the median step says nothing about this code."""
    short = {"forward": 0.03, "backward": 0.06, "optimizer": 0.01}
    rows = steps(400, lambda n: {"other": 30.0 if n % every == every - 1 else 0.0}, **short)
    assert ("RUN006" in of_rows(tmp_path, rows)) == there


@pytest.mark.parametrize("rollouts, proposed", [(False, True), (True, False)])
def test_run006_of_an_environment_does_not_propose_to_run_it_less_often(tmp_path, rollouts, proposed):
    finding = of_rows(tmp_path, plain(60, other=10), summary={"rollouts": rollouts})["RUN006"]
    assert ("host.less_often" in remedies(finding)) == proposed
    assert "host.vectorize" in remedies(finding)


@pytest.mark.parametrize("count, confidence", [(12, "high"), (5, "medium"), (2, "low")])
def test_run006_is_as_sure_as_there_are_stack_samples(tmp_path, count, confidence):
    hot = [{"slot": "other", "side": "host", "function": "log (train.py:9)", "count": count, "leaf": None}]
    assert of_rows(tmp_path, plain(60, other=10), summary={"hot": hot})["RUN006"].confidence == confidence


def test_run006_is_not_said_of_a_training_step_in_a_library(tmp_path):
    """`svi.step(batch)`: forward passes are not seen, and the program's line is the one that leads to backward."""
    counted = [{"slot": "gap", "side": "unknown", "count": 50}, {"slot": "gap", "side": "host", "count": 2}]
    rows = steps(60, gap=7, backward=3, optimizer=1)
    findings = of_rows(tmp_path, rows, summary={"samples": counted})
    assert "RUN006" not in findings
    assert findings["COMP001"].time_share > 0.9


def test_run006_counts_only_lines_that_lead_to_no_pass(tmp_path):
    counted = [{"slot": "other", "side": "unknown", "count": 50}, {"slot": "other", "side": "host", "count": 50}]
    finding = of_rows(tmp_path, plain(60, other=10), summary={"samples": counted})["RUN006"]
    assert finding.time_share == pytest.approx(0.25)


def test_run006_is_not_said_of_the_making_of_an_input(tmp_path):
    counted = [{"slot": "gap", "side": "input", "count": 50}]
    findings = of_rows(tmp_path, plain(60, gap=10, fetches=0), summary={"samples": counted})
    assert "RUN006" not in findings


# -- the host ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "threads, contention, there", [(2, 0.5, False), (3, 0.5, True), (8, 0.09, False), (8, 0.13, True)]
)
def test_host001_cpu_oversubscribed(tmp_path, threads, contention, there):
    findings = of_rows(tmp_path, plain(60), meta={"threads": threads}, contention=contention)
    assert ("HOST001" in findings) == there
    if there:
        assert findings["HOST001"].remedies[0].change == "torch.set_num_threads(2) or OMP_NUM_THREADS=2"


def test_host001_counts_the_ranks_of_a_host(tmp_path):
    folder = RunFolder(tmp_path)
    for number in range(2):
        folder.rank(plain(60), number, meta={"world": 2, "distributed": True, "threads": 4}, contention=0.5)
    finding = found(folder.gauges(header={"allowed_cores": 4.0}).facts())["HOST001"]
    assert finding.summary == "8 compute threads share 4 CPU cores"
    assert "set_num_threads(2)" in finding.remedies[0].change


@pytest.mark.parametrize("pages, there", [(49, False), (51, True), (None, False)])
def test_host002_memory_swapping(tmp_path, pages, there):
    assert ("HOST002" in of_rows(tmp_path, plain(60), gauges={"swap_in_pages_per_s": pages})) == there


@pytest.mark.parametrize(
    "contention, others, throttled, there",
    [
        (0.5, 0.5, None, True),
        (0.5, 0.3, None, False),
        (0.09, 1.5, None, False),
        (0.5, 0.0, 0.06, True),
        (0.5, 0.0, 0.04, False),
    ],
)
def test_host003_cpu_contended(tmp_path, contention, others, throttled, there):
    gauges = {"own_cpu_cores": 1.0, "other_cpu_cores": others, "cgroup_throttled_share": throttled}
    assert ("HOST003" in of_rows(tmp_path, plain(60), gauges=gauges, contention=contention)) == there


@pytest.mark.parametrize("own, others, there", [(2.0, 30.0, False), (8.0, 55.0, True)])
def test_host003_in_a_container_counts_others_only_where_cores_are_full(tmp_path, own, others, there):
    """64 cores, of which a quota grants two: that others use 30 takes nothing from the program."""
    gauges = {"own_cpu_cores": own, "other_cpu_cores": others, "cgroup_throttled_share": 0.0}
    header = {"allowed_cores": 2.0, "affinity": list(range(64))}
    findings = of_rows(tmp_path, plain(60), gauges=gauges, header=header, contention=0.5)
    assert ("HOST003" in findings) == there


def test_host003_states_the_share_of_step_time_not_of_the_wanted_time(tmp_path):
    """A step of 20 ms of which the thread wants 10 ms of a CPU, and waits 5 ms for it."""
    rows = plain(60, wait=10)
    finding = of_rows(tmp_path, rows, gauges={"own_cpu_cores": 0.5, "other_cpu_cores": 1.5}, contention=0.25)["HOST003"]
    assert finding.time_share == pytest.approx(0.25)
    assert finding.gain.high == pytest.approx(1 / 0.75)


def test_a_busy_neighbour_is_no_finding_about_the_program(tmp_path):
    findings = of_rows(tmp_path, plain(60), gauges={"other_cpu_cores": 1.9}, contention=1.0)
    assert set(findings) <= {"HOST003", "COMP001"}


def test_no_finding_about_a_host_without_gauges(tmp_path):
    folder = RunFolder(tmp_path).rank(plain(60), contention=1.0, meta={"threads": 64})
    assert not {code for code in found(folder.facts()) if code.startswith("HOST")}


# -- convergence -------------------------------------------------------------------------------------


def losing(tmp_path, values, **objectives) -> dict[str, Finding]:
    rows = steps(len(values), lambda n: {"loss": values[n]}, forward=3, backward=6, optimizer=1)
    return of_rows(tmp_path, rows, summary={"training": objectives.pop("told", None) or training(**objectives)})


def falling(count: int, first: float = 4.0, last: float = 1.0) -> list[float]:
    return [last + (first - last) * 0.5 ** (8 * n / count) for n in range(count)]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_conv001_loss_not_finite(tmp_path, bad):
    findings = losing(tmp_path, [*falling(40), *[bad] * 20])
    assert findings["CONV001"].severity == "critical"
    assert findings["CONV001"].evidence[0].value == 40
    assert "step 40" in findings["CONV001"].summary
    assert "CONV002" not in findings


def test_conv001_from_the_first_step_on(tmp_path):
    assert "from step 0" in losing(tmp_path, [math.nan] * 30)["CONV001"].summary


@pytest.mark.parametrize("values", [falling(60), [None] * 60])
def test_no_finding_about_a_loss_that_falls_or_was_not_seen(tmp_path, values):
    findings = losing(tmp_path, values)
    assert not {"CONV001", "CONV002"} & set(findings)


@pytest.mark.parametrize("last, there", [(11.0, False), (13.0, True), (1e9, True)])
def test_conv002_loss_diverging(tmp_path, last, there):
    assert ("CONV002" in losing(tmp_path, [4.0] * 30 + [last] * 30)) == there


@pytest.mark.parametrize("last, severity", [(13.0, "warning"), (41.0, "critical")])
def test_conv002_is_critical_from_ten_times_the_first_loss_on(tmp_path, last, severity):
    assert losing(tmp_path, [4.0] * 30 + [last] * 30)["CONV002"].severity == severity


def test_conv002_of_a_loss_below_zero_is_no_critical_one(tmp_path):
    assert losing(tmp_path, [-1.0, *[4.0] * 29, *[400.0] * 30])["CONV002"].severity == "warning"


SEVERAL = [
    pytest.param(training(((1, 2), 0), ((2,), 1)), id="two networks with an optimizer each"),
    pytest.param(training(((1,), 0), ((2,), 0)), id="two networks in turn"),
    pytest.param({}, id="record of an earlier version"),
]


@pytest.mark.parametrize("told", SEVERAL)
def test_nothing_is_said_of_the_losses_of_several_objectives(tmp_path, told):
    assert "CONV002" not in losing(tmp_path, [4.0] * 30 + [4e6] * 30, told=told or {"updates": 0})
    flat = [*falling(50), *[1.01, 1.0] * 75]
    assert "CONV003" not in losing(tmp_path / "flat", flat, told=told or {"updates": 0})


@pytest.mark.parametrize("moving", [{"free": 1.0}, {"forwards": 2.0}])
def test_conv002_of_targets_that_a_model_makes(tmp_path, moving):
    """The loss of a healthy agent rises with the values it learns."""
    assert "CONV002" not in losing(tmp_path, [0.1] * 30 + [50.0] * 30, **moving)
    assert losing(tmp_path / "far", [0.1] * 30 + [1e9] * 30, **moving)["CONV002"].severity == "warning"


def test_conv002_takes_losses_enough(tmp_path):
    assert "CONV002" not in losing(tmp_path, falling(19, first=4.0, last=100.0))
    assert "CONV002" in losing(tmp_path / "more", falling(20, first=4.0, last=100.0))


def test_conv002_is_not_said_of_a_loss_that_was_high_before(tmp_path):
    early = [1.0, 1.0, *[50.0] * 28]
    assert "CONV002" not in losing(tmp_path, [*early, *[40.0] * 30])


def test_conv003_loss_plateau(tmp_path):
    findings = losing(tmp_path, [*falling(50), *[1.01, 1.0] * 75])
    assert findings["CONV003"].evidence[0].value == 100
    assert findings["CONV003"].gain is None


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([4.0 - 3.0 * n / 200 for n in range(200)], id="still falling"),
        pytest.param([2.0 + 0.2 * math.sin(n) for n in range(100)], id="never fell, but few"),
        pytest.param([4.0] * 60 + [3.85] * 140, id="fell by less than 5%"),
        pytest.param(falling(59), id="too few"),
        pytest.param([4.0 * 0.9**n for n in range(60)] + [0.011, 0.010] * 70, id="converged near zero"),
    ],
)
def test_conv003_is_not_said(tmp_path, values):
    assert "CONV003" not in losing(tmp_path, values)


@pytest.mark.parametrize("seed", [8, 9, 11])
def test_conv003_is_not_said_of_a_noisy_loss_that_still_falls(tmp_path, seed):
    noise = np.random.default_rng(seed).standard_normal(168)
    assert "CONV003" not in losing(tmp_path, [1.2 * math.exp(-n / 60) + 0.3 + 0.3 * x for n, x in enumerate(noise)])


def test_conv003_of_a_loss_that_never_fell(tmp_path):
    found = losing(tmp_path, [2.0 + 0.2 * math.sin(n) for n in range(200)])["CONV003"]
    assert (found.confidence, found.summary) == ("low", "the loss has not improved during the whole run")


def test_conv003_of_a_loss_that_never_changes(tmp_path):
    assert losing(tmp_path, [0.7] * 80)["CONV003"].evidence[0].value == 0


# -- what is healthy ---------------------------------------------------------------------------------


def test_a_healthy_run_has_nothing_but_that_said_of_it(tmp_path):
    rows = steps(200, lambda n: {"loss": falling(200)[n]}, data_wait=0.2, forward=3, backward=6, optimizer=0.8)
    folder = RunFolder(tmp_path).rank(rows, summary={"loaders": [loader()], "optimizers": [ADAM]}, tail=step(gap=5))
    folder.worker(0, meter(100, 0.010, 0.010)).worker(1, meter(100, 0.010, 0.010))
    assert set(found(folder.gauges(own_cpu_cores=1.0, other_cpu_cores=0.1).facts())) == {"COMP001"}


@pytest.mark.parametrize(
    "debug, expected",
    [
        ([], None),
        (["anomaly_detection"], ("medium", ["debug.anomaly_detection"])),
        (["launch_blocking", "deterministic_algorithms", "distributed_debug"], None),
    ],
    ids=["none", "anomaly detection", "settings that cost nothing in one process on a CPU"],
)
def test_debug_settings_on_a_cpu(tmp_path, debug, expected):
    finding = of_rows(tmp_path, plain(60), meta={"debug": debug}).get("RUN007")
    assert (finding and (finding.confidence, remedies(finding))) == expected


def test_debug_settings_on_a_gpu_and_on_ranks(tmp_path):
    debug = ["deterministic_algorithms"]
    alone = found(gpu_run(tmp_path / "a", meta={"debug": debug}))["RUN007"]
    assert (alone.severity, alone.gain) == ("info", None)
    blocking = found(gpu_run(tmp_path / "b", meta={"debug": [*debug, "launch_blocking"]}))["RUN007"]
    assert (blocking.severity, blocking.confidence) == ("warning", "high")
    assert remedies(blocking) == ["debug.launch_blocking", "debug.deterministic_algorithms"]
    folder = RunFolder(tmp_path / "c")
    for number in range(2):
        on = ["distributed_debug"] if number else []
        folder.rank(plain(60), number, meta={"world": 2, "distributed": True, "debug": on})
    checked = found(folder.gauges().facts())["RUN007"]
    assert checked.ranks == [1]
    assert "in 1 of 2 ranks" in checked.evidence[0].text
