"""The critical path: what each moment waited for, in pieces that tile the time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.traces.making import by_chance, captured, fetching, gpu, host, launch, waiting

from paceline.traces.analyze.critical_path import KINDS, CriticalPath, critical_path_of, timeline_of
from paceline.traces.analyze.path_summary import path_in
from paceline.traces.read.files import captures_of

CAPTURES = Path(__file__).parents[1] / "captures"
REAL = ("b200_eager", "diff_test", "dlrm8_rank0", "dlrm8_rank7", "resnet50_w4_a")


def pieces(folder, *events) -> list[tuple[str, float, float]]:
    """Return kind, start and end of the pieces of a path, in microseconds."""
    capture = captured(folder, *events)
    found = critical_path_of(timeline_of(capture, capture.events))
    return [(KINDS[k], s / 1e3, e / 1e3) for k, s, e in zip(found.kind, found.start_ns, found.end_ns, strict=True)]


def assert_tiles(path: CriticalPath, begin: int, end: int) -> None:
    assert path.start_ns[0] == begin
    assert path.end_ns[-1] == end
    assert (path.start_ns[1:] == path.end_ns[:-1]).all()
    assert (path.end_ns > path.start_ns).all()


def test_the_host_is_on_it_where_the_gpu_had_nothing_to_do(tmp_path):
    found = pieces(tmp_path, launch(0, 1), gpu(4, 10, 1), launch(30, 2), gpu(33, 50, 2))
    assert found == [("host", 0, 30), ("launch", 30, 33), ("compute", 33, 50)]


def test_the_gpu_is_on_it_where_the_host_is_ahead(tmp_path):
    found = pieces(tmp_path, launch(0, 1), launch(2, 2), gpu(4, 20, 1), gpu(21, 50, 2))
    assert found == [("launch", 0, 4), ("compute", 4, 20), ("gap", 20, 21), ("compute", 21, 50)]


def test_a_call_that_waits_leads_back_to_the_gpu(tmp_path):
    found = pieces(tmp_path, launch(0, 1), gpu(4, 40, 1), waiting(3, 42), launch(60, 2), gpu(65, 70, 2))
    assert found == [
        ("launch", 0, 4), ("compute", 4, 40), ("return", 40, 42), ("host", 42, 60),
        ("launch", 60, 65), ("compute", 65, 70),
    ]  # fmt: skip


def test_fetching_is_told_apart_from_the_rest_of_the_host(tmp_path):
    found = pieces(tmp_path, launch(0, 1), gpu(4, 10, 1), fetching(12, 30), launch(35, 2), gpu(38, 40, 2))
    assert found == [("host", 0, 12), ("loader", 12, 30), ("host", 30, 35), ("launch", 35, 38), ("compute", 38, 40)]


def test_work_waits_for_another_stream(tmp_path):
    events = [launch(0, 1), launch(1, 2), launch(2, 3)]
    events += [gpu(4, 10, 1), gpu(5, 50, 2, "ncclKernel_AllReduce", 20), gpu(52, 60, 3)]
    found = pieces(tmp_path, *events)
    assert found == [
        ("host", 0, 1), ("launch", 1, 5), ("communication", 5, 50), ("gap", 50, 52), ("compute", 52, 60),
    ]  # fmt: skip


def test_what_the_host_does_after_the_last_work_is_on_it(tmp_path):
    step = host("ProfilerStep#3", 0, 100, cat="user_annotation")
    found = pieces(tmp_path, step, launch(10, 1), gpu(14, 20, 1))
    assert found == [("host", 0, 100)]


def test_work_without_a_launch_is_not_known(tmp_path):
    events = [gpu(10, 20, 0), gpu(30, 40, 0)]
    for event in events:
        del event["args"]["correlation"]
    assert pieces(tmp_path, *events) == [("compute", 10, 20), ("gap", 20, 30), ("compute", 30, 40)]


@pytest.mark.parametrize("seed", range(30))
def test_it_tiles_whatever_ran(tmp_path, seed):
    capture = captured(tmp_path, *by_chance(seed))
    line = timeline_of(capture, capture.events)
    path = critical_path_of(line)
    assert_tiles(path, line.begin_ns, line.finish_ns)
    on = path.event >= 0
    assert (line.start_ns[path.event[on]] == path.start_ns[on]).all()
    assert (np.isin(path.kind, (0, 1, 2)) == on).all()


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("window", ["all", "steps"])
def test_it_tiles_real_captures_and_their_steps(name, window):
    from paceline.traces.analyze.gpu_time import events_in

    (capture,) = captures_of(CAPTURES / f"{name}.json.gz")
    events = events_in(capture, window)
    line = timeline_of(capture, events)
    assert_tiles(critical_path_of(line), line.begin_ns, line.finish_ns)
    found = path_in(capture, events)
    assert sum(found.kinds_ns.values()) == found.length_ns == line.finish_ns - line.begin_ns
    marked = {step.name: step.end_ns - step.start_ns for step in capture.steps}
    assert {step.name: step.length_ns for step in found.steps} == marked
    on_gpu = sum(found.kinds_ns[kind] for kind in ("compute", "communication", "copy"))
    assert sum(found.kernels_ns.values()) == on_gpu > 0


def test_without_gpu_work_there_is_none(tmp_path):
    capture = captured(tmp_path, launch(0, 1), gpu(5, 5, 1))
    assert path_in(capture, capture.events) is None
