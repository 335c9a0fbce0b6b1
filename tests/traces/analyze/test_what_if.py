"""What if something were faster: a capture is played again, and comes out as it was when nothing changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.traces.making import by_chance, captured, fetching, gpu, launch, waiting
from tests.traces.read.test_kineto import kernel, written

from paceline.core.errors import UsageError
from paceline.traces.analyze.critical_path import critical_path_of, timeline_of
from paceline.traces.analyze.ranks import TraceOptions, read_all
from paceline.traces.analyze.what_if import Replay, WhatIfChange, parse_change, usual_changes
from paceline.traces.read.files import captures_of

CAPTURES = Path(__file__).parents[1] / "captures"
NOTHING = WhatIfChange(what="nothing changed")


def after(folder, *events, asked: str) -> float:
    """Return how long a capture takes with a change, in microseconds."""
    capture = captured(folder, *events)
    return Replay(timeline_of(capture, capture.events)).play(parse_change(asked)).after_ns / 1e3


@pytest.mark.parametrize("seed", range(30))
def test_with_nothing_changed_it_comes_out_as_it_was(tmp_path, seed):
    capture = captured(tmp_path, *by_chance(seed))
    line = timeline_of(capture, capture.events)
    assert Replay(line).play(NOTHING).after_ns == line.finish_ns - line.begin_ns


@pytest.mark.parametrize("name", ["b200_eager", "diff_test", "dlrm8_rank0", "dlrm8_rank7", "resnet50_w4_a"])
def test_real_captures_come_out_as_they_were(name):
    (capture,) = captures_of(CAPTURES / f"{name}.json.gz")
    line = timeline_of(capture, capture.events)
    assert Replay(line).play(NOTHING).after_ns == line.finish_ns - line.begin_ns


@pytest.mark.parametrize("seed", range(30))
def test_a_change_gains_no_more_than_what_it_takes_away(tmp_path, seed):
    """Faster is never slower, and what is left out was there: on the path, or beside it."""
    capture = captured(tmp_path, *by_chance(seed))
    line = timeline_of(capture, capture.events)
    before = line.finish_ns - line.begin_ns
    for change in usual_changes(line):
        assert 0 <= Replay(line).play(change).after_ns <= before
    lost = Replay(line).play(parse_change("communication=gone")).after_ns
    communication = sum(line.end_ns - line.start_ns) - sum((line.end_ns - line.start_ns)[line.class_ != 1])
    assert before - lost <= communication
    assert Replay(line).play(parse_change("communication=2")).after_ns >= lost


def test_the_host_bounds_a_run_that_is_launched_piece_by_piece(tmp_path):
    events = [e for i in range(5) for e in (launch(20 * i, i), gpu(20 * i + 4, 20 * i + 9, i))]
    assert after(tmp_path, *events, asked="compute=gone") == 84  # 80 of host, 4 from the last launch to its work
    assert after(tmp_path, *events, asked="host=gone") == 4 + 5 * 5 + 4 * 1  # one after the other, a gap of 1 between
    assert after(tmp_path, *events, asked="host=2") == 40 + 4 + 5


def test_work_that_hides_behind_other_work_gains_nothing(tmp_path):
    events = [launch(0, 1), launch(1, 2), launch(2, 3)]
    events += [gpu(4, 100, 1), gpu(5, 50, 2, "ncclKernel_AllReduce", 20), gpu(101, 110, 3)]
    assert after(tmp_path, *events, asked="communication=gone") == 110
    assert after(tmp_path, *events, asked="compute=gone") == 50  # now it is on the path


def test_batches_that_are_there_at_once(tmp_path):
    events = [launch(0, 1), gpu(4, 10, 1), fetching(12, 30), launch(35, 2), gpu(38, 40, 2)]
    assert after(tmp_path, *events, asked="loader=gone") == 40 - 18
    assert after(tmp_path, *events, asked="loader=3") == 40 - 12


def test_a_host_that_does_not_wait_for_results(tmp_path):
    events = [launch(0, 1), gpu(4, 40, 1), waiting(3, 42), launch(60, 2), gpu(65, 70, 2)]
    assert after(tmp_path, *events, asked="waits=gone") == 46  # the work of 36, and of 5, a gap of 1: 4 + 36 + 1 + 5
    assert after(tmp_path, *events, asked="kernel:gemm=gone") == 4 + 2 + 18 + 5


@pytest.mark.parametrize(
    "asked, said",
    [
        ("network=2", "unknown part of the time; the known parts are loader, host"),
        ("communication=0", "is not a factor"),
        ("communication=fast", "is not a factor"),
        ("waits=2", "the part waits can only be given as waits=gone"),
        ("communication", "unknown part"),
        ("kernel:=2", "unknown part"),
    ],
)
def test_what_cannot_be_asked(asked, said):
    with pytest.raises(UsageError, match=said):
        parse_change(asked)


def test_a_kernel_that_some_rank_has_is_asked_of_all(tmp_path):
    """A rank without it stays as it was; a name that none has is refused."""
    captured(tmp_path, launch(0, 1), gpu(4, 10, 1), name="rank0.json")
    captured(tmp_path, launch(0, 1), gpu(4, 10, 1), launch(5, 2), gpu(10, 30, 2, "conv"), name="rank1.json")
    files = [tmp_path / "rank0.json", tmp_path / "rank1.json"]
    traces = read_all(files, TraceOptions(path=True, what_if=("kernel:conv=2",)), 1)
    (without,), (with_it,) = (rank.path.what_if for rank in traces.ranks)
    assert without.after_ns == without.before_ns
    assert with_it.after_ns == with_it.before_ns - 10_000
    with pytest.raises(UsageError, match="no kernel name contains 'norm'"):
        read_all(files, TraceOptions(path=True, what_if=("kernel:norm=2",)), 1)


def test_what_is_asked_by_itself_is_what_the_capture_has(tmp_path):
    capture = captured(tmp_path, launch(0, 1), gpu(4, 10, 1), fetching(12, 30), launch(35, 2), gpu(38, 40, 2, "add"))
    line = timeline_of(capture, capture.events)
    asked = [change.what for change in usual_changes(line)]
    parts = ("fetching batches", "host work")
    assert asked == [*(f"{part} took no time" for part in parts), "gemm took 1/2", "add took 1/2"]
    assert critical_path_of(line).by_kind()["loader"] == 18_000


def test_a_launch_that_a_full_queue_holds_up_waits_for_the_gpu(tmp_path):
    """600 kernels of 100 us; the host launches 300 at once, then each launch returns when a kernel has ended."""
    events = []
    for number in range(600):
        at, lasted = (number, 1) if number < 300 else ((number - 300) * 100 + 301, 99)
        call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at, "dur": lasted}
        events += [kernel(100 * number + 300, 100, "sgemm", correlation=number)]
        events += [{**call, "args": {"correlation": number}}]
    (capture,) = captures_of(written(tmp_path, events))
    line = timeline_of(capture, capture.events)
    assert critical_path_of(line).by_kind()["compute"] > 0.98 * critical_path_of(line).length_ns
    half = Replay(line).play(parse_change("compute=2"))
    assert half.faster == pytest.approx(2.0, rel=0.05)
    assert Replay(line).play(NOTHING).faster == 1.0
