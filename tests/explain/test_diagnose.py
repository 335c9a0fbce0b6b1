"""Whole runs, from their folder to the verdict."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from tests.explain import build
from tests.explain.build import FIRST_NS, HOST, OFFSET_NS, RunFolder, S, loader, meter, plain, steps, two_ranks
from tests.traces.read.test_kineto import kernel, written

from paceline.explain.analysis.run_analysis import gain_of_removing
from paceline.explain.diagnose import diagnose, findings_in
from paceline.explain.model import Diagnosis, Finding
from paceline.record.layout import PHASES
from paceline.traces.analyze.ranks import TraceOptions, read_all
from paceline.traces.read.files import files_in


def diagnosed(folder: RunFolder, **launch) -> Diagnosis:
    return diagnose(folder.gauges(own_cpu_cores=1.0).launch(**launch).read())


def test_a_run_that_waits_for_its_loader(tmp_path):
    folder = RunFolder(tmp_path).rank(plain(200, wait=10), summary={"loaders": [loader()]}, cores=0.5)
    folder.worker(0, meter(100, 0.04, 0.001)).worker(1, meter(100, 0.04, 0.001))
    found = diagnosed(folder)
    assert (found.verdict, found.findings[0].code) == ("loader-io-bound", "DATA003")
    assert found.verdict_text == found.findings[0].summary
    assert found.ended == "finished"
    assert found.shares["data_wait"] == pytest.approx(0.5)
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert set(found.seconds) == set(PHASES)
    assert found.step_s.value == pytest.approx(0.020)
    assert found.samples_per_s == pytest.approx(8 / 0.020)
    assert (found.world, found.device, found.loader.workers) == (1, "cpu", 2)
    assert len(found.timelines[0]) == 200
    assert found.problems == []


def test_a_healthy_run(tmp_path):
    assert diagnosed(RunFolder(tmp_path).rank(plain(200))).verdict == "compute-bound"


def test_nothing_stands_out(tmp_path):
    rows = plain(200, wait=0.4, transfer=1, other=0.7)
    assert diagnosed(RunFolder(tmp_path).rank(rows)).verdict == "balanced"


def test_a_loss_that_is_no_number_goes_before_a_loader_that_is_slow(tmp_path):
    rows = steps(60, lambda n: {"loss": 1.0 if n < 30 else math.nan}, data_wait=90, forward=10)
    assert diagnosed(RunFolder(tmp_path).rank(rows)).verdict == "loss-not-finite"


@pytest.mark.parametrize(
    "count, ms, verdict",
    [(12, 100, "too-short"), (13, 100, "compute-bound"), (40, 2, "too-short"), (80, 2, "compute-bound")],
)
def test_twelve_steady_steps_in_a_while_are_needed(tmp_path, count, ms, verdict):
    found = diagnosed(RunFolder(tmp_path).rank(steps(count, forward=ms)))
    assert found.verdict == verdict
    if verdict == "too-short":
        assert f"{count - 1} steady steps" in found.verdict_text


def test_a_short_run_whose_loss_is_no_number(tmp_path):
    assert diagnosed(RunFolder(tmp_path).rank(steps(3, forward=10, loss=math.nan))).verdict == "loss-not-finite"


@pytest.mark.parametrize(
    "exit_code, words", [(0, "ran a backward pass"), (1, "ended before the first step"), (None, "ran a backward pass")]
)
def test_a_run_without_a_step(tmp_path, exit_code, words):
    found = diagnosed(RunFolder(tmp_path), exit_code=exit_code, wall_s=3.0)
    assert found.verdict == "no-steps"
    assert words in found.verdict_text
    assert (found.ranks, found.findings, found.world) == ((), (), 0)
    assert "steps" in found.unavailable


@pytest.mark.parametrize("exit_code", [0, 1])
def test_backward_passes_without_a_step_are_counted(tmp_path, exit_code):
    folder = RunFolder(tmp_path).rank(steps(0), summary={"training": {"backwards": 20}})
    found = diagnosed(folder, exit_code=exit_code, wall_s=3.0)
    assert found.verdict == "no-steps"
    assert "20 backward passes ran, but no optimizer made a step" in found.verdict_text
    assert found.unavailable["steps"] in found.verdict_text


def test_an_exception_is_named_with_its_rank(tmp_path):
    folder = RunFolder(tmp_path)
    note = {"kind": "end", "exception": "RuntimeError", "message": "shapes\nmore", "where": "train.py:9"}
    two_ranks(folder, [plain(30), plain(30)])
    folder.rank(plain(30), 2, meta={"world": 3, "distributed": True}, notes=[note])
    found = diagnosed(folder, exit_code=1)
    assert found.ended == "exited with code 1: RuntimeError at train.py:9 on rank 2: shapes"
    assert found.exit_code == 1


def ended_by(tmp_path, exit_code: int, **record) -> str:
    folder = RunFolder(tmp_path).rank(plain(30))
    folder.launch()
    folder.write_json("end-node-a-7.json", {"exit_code": exit_code, "wall_s": 9.0, **record})
    return diagnose(folder.read()).ended


@pytest.mark.parametrize(
    "exit_code, record, words",
    [
        (
            137,
            {"signal": "SIGKILL", "oom_kills": 1},
            "killed (SIGKILL); likely out of memory: "
            "during the run, the operating system killed a process on this host because memory was full",
        ),
        (137, {"signal": "SIGKILL", "oom_kills": 0}, "killed (SIGKILL)"),
        (130, {"signal": "SIGINT"}, "interrupted (SIGINT)"),
        (143, {}, "ended by SIGTERM"),
        (3, {}, "exited with code 3"),
        (255, {}, "exited with code 255"),
    ],
)
def test_how_a_run_ended(tmp_path, exit_code, record, words):
    assert ended_by(tmp_path, exit_code, **record) == words


def test_a_rank_without_a_last_word(tmp_path):
    folder = RunFolder(tmp_path)
    for number in range(3):
        notes = () if number == 1 else ({"kind": "end", "exception": None},)
        folder.rank(plain(30), number, meta={"world": 3, "distributed": True}, notes=notes)
    assert diagnosed(folder, exit_code=1).ended.endswith("without a message: rank 1")


def test_lives_are_told(tmp_path):
    folder = RunFolder(tmp_path)
    for life in range(2):
        for number in range(2):
            started = {"started_unix_s": (FIRST_NS + OFFSET_NS) / S + 100 * life}
            folder.rank(plain(30), number, pid=10 * life + number, meta={"world": 2, "distributed": True} | started)
    assert "2 rank processes were restarted" in diagnosed(folder).ended


@pytest.mark.parametrize(
    "losses, expected",
    [
        pytest.param([lambda n: 1 / (n + 1), lambda n: 1 / (n + 1)], 1, id="tensor-parallel: the same losses"),
        pytest.param([lambda n: 1 / (n + 1), lambda n: 2 / (n + 1)], 2, id="data-parallel: losses of their own"),
        pytest.param([None, lambda n: 1 / (n + 1)], 1, id="pipeline: only the last stage has a loss"),
        pytest.param([None, None], 2, id="no losses were seen"),
    ],
)
def test_samples_that_several_ranks_see_count_once(tmp_path, losses, expected):
    folder = RunFolder(tmp_path)
    for number, loss in enumerate(losses):
        rows = steps(60, lambda n, loss=loss: {"loss": loss(n)} if loss else {}, forward=3, backward=6, optimizer=1)
        folder.rank(rows, number, meta={"world": 2, "distributed": True})
    assert diagnosed(folder).samples_per_s == pytest.approx(expected * 8 / 0.010)


def test_readings_of_a_host_are_compared_with_steps_on_its_own_clock(tmp_path):
    """The clock of the second host is an hour ahead: its steps do not say when the first host trained."""
    folder = RunFolder(tmp_path).rank(plain(200), 0, meta={"world": 2, "distributed": True})
    folder.gauges(own_cpu_cores=1.0)
    with open(next((folder.folder / "gauges").iterdir()), "a") as file:
        after = {"kind": "host", "time_ns": folder.end_ns + 10 * S, "interval_s": 1.0, "own_cpu_cores": 9.0}
        file.write(f"{json.dumps(after)}\n")
    ahead = {"host": "node-b", "first_ns": FIRST_NS + 3600 * S, "epoch_offset_ns": OFFSET_NS - 3600 * S}
    folder.rank(plain(200), 1, meta={"world": 2, "distributed": True} | ahead)
    assert folder.facts().host.own_cores == pytest.approx(1.0)


def test_what_an_hour_costs_and_what_of_it_was_idle(tmp_path):
    folder = RunFolder(tmp_path).rank(plain(100, wait=10))
    found = diagnosed(folder, wall_s=1800.0, price_per_hour=4.0, price_source="told")
    assert found.cost.run == pytest.approx(2.0)
    assert found.cost.idle == pytest.approx(1.0)
    assert diagnosed(RunFolder(tmp_path / "free").rank(plain(100))).cost is None


def test_what_could_not_be_measured_says_why(tmp_path):
    found = diagnosed(RunFolder(tmp_path).rank(plain(60, samples=math.nan)))
    assert {"mfu", "device_memory", "loss", "samples", "loader", "profiler_window"} <= set(found.unavailable)
    assert found.samples_per_s is None
    assert found.mfu is None


def test_a_fault_of_ours_is_told(tmp_path):
    fault = {"kind": "fault", "reason": "recorder: OSError: No space left"}
    found = diagnosed(RunFolder(tmp_path).rank(plain(60), notes=[fault]))
    assert found.problems == ["watching stopped on rank 0: recorder: OSError: No space left"]


def test_many_ranks(tmp_path):
    two_ranks(folder := RunFolder(tmp_path), [plain(40, backward_blocked=3) for _ in range(20)], count=4)
    found = diagnosed(folder)
    assert (found.world, found.verdict) == (20, "communication-exposed")
    assert found.samples_per_s == pytest.approx(20 * 8 / 0.010)
    assert len(found.timelines) <= 16


def test_a_tail_is_no_step(tmp_path):
    found = diagnosed(RunFolder(tmp_path).rank(plain(60), tail=build.step(evaluation=9000)))
    assert found.ranks[0].steps == 60
    assert found.shares["evaluation"] == 0.0


def test_the_same_record_is_always_explained_the_same(tmp_path):
    folder = RunFolder(tmp_path).rank(plain(100, wait=10, loss=1.0))
    first = diagnosed(folder)
    assert dataclasses.asdict(first) == dataclasses.asdict(diagnose(folder.read()))


def test_gain_of_removing():
    assert (gain_of_removing(0.5, 0.0, 1.0).low, gain_of_removing(0.5, 0.0, 1.0).high) == (1.0, 2.0)
    assert gain_of_removing(5.0, 0.5, 1.0).high == pytest.approx(100.0)
    assert gain_of_removing(-1.0, 0.5, 1.0).high == 1.0


@pytest.mark.parametrize(
    "command, shown",
    [
        (["/home/me/.venv/bin/python3.12", "my train.py"], "python3.12 'my train.py'"),
        (["torchrun", "train.py"], "torchrun train.py"),
        (["/opt/own/launch", "a"], "/opt/own/launch a"),
    ],
)
def test_the_command_is_shown_as_it_would_be_typed(tmp_path, command, shown):
    assert diagnose(RunFolder(tmp_path).rank(plain(60)).launch(command=command).read()).command == shown


def test_a_command_whose_end_could_not_be_written_does_not_say_that_it_still_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("platform.node", lambda: HOST)
    folder = RunFolder(tmp_path).rank(plain(30)).launch(exit_code=None, pid=os.getpid())
    assert diagnose(folder.read()).ended == "ended; the exit code could not be recorded"


# ---------------------------------------------------------------------------------------------------- profiler captures


CAPTURES = Path(__file__).parents[1] / "traces" / "captures"


def findings(*paths: Path) -> dict[str, Finding]:
    """Findings by code, the verdict's first."""
    return {one.code: one for one in findings_in(read_all(files_in(paths), TraceOptions(), 1))}


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
