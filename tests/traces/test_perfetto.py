"""Windows of captures for Perfetto: what lies in them, whole, ranks side by side."""

from __future__ import annotations

import gzip
import json

import pytest
from tests.traces.making import captured, gpu, host, launch

from paceline.core.errors import UsageError
from paceline.traces.perfetto import ExportWindow, export_window, parse_window


@pytest.fixture
def path(tmp_path):
    """Three steps of 100 us, a piece of work in each."""
    events = [{"ph": "M", "name": "process_name", "pid": 0, "ts": 0, "args": {"name": "python"}}]
    for step in range(3):
        at = 100 * step
        events += [host(f"ProfilerStep#{step + 10}", at, at + 99 + (step == 1) * 0.5, cat="user_annotation")]
        events += [launch(at + 5, step), gpu(at + 10, at + 30, step)]
    captured(tmp_path, *events)
    return tmp_path / "made.json"


def kept(path, between) -> list[dict]:
    return json.loads(export_window({"rank 0": path}, {}, between))["traceEvents"]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("#10:#12", ExportWindow(steps=(10, 12))),
        ("#11", ExportWindow(steps=(11, 11))),
        ("1.5ms:20ms", ExportWindow(times_us=(1500.0, 20000.0))),
        ("800us : 1s", ExportWindow(times_us=(800.0, 1e6))),
    ],
)
def test_windows_as_they_are_written(text, expected):
    assert parse_window(text) == expected


@pytest.mark.parametrize("text", ["", "10:12", "5ms", "20ms:5ms", "#a:#b", "1ms:2ms:3ms", "1.2.3ms:4ms"])
def test_what_is_no_window(text):
    with pytest.raises(UsageError, match="is not a range of steps or times"):
        parse_window(text)


def test_marked_steps(path):
    names = [event["name"] for event in kept(path, ExportWindow(steps=(11, 12)))]
    assert names.count("gemm") == 2
    assert {"process_name", "ProfilerStep#11", "ProfilerStep#12"} <= set(names)
    assert "ProfilerStep#10" not in names


def test_steps_that_only_touch_the_window_are_not_in_it(tmp_path):
    steps = [host(f"ProfilerStep#{step}", 100 * step, 100 * step + 100, cat="user_annotation") for step in range(3)]
    captured(tmp_path, *steps, name="touching.json")
    names = [event["name"] for event in kept(tmp_path / "touching.json", ExportWindow(steps=(1, 1)))]
    assert names == ["ProfilerStep#1"]


def test_times_since_the_first_event(path):
    names = [event["name"] for event in kept(path, ExportWindow(times_us=(112.0, 115.0)))]
    assert sorted(names) == ["ProfilerStep#11", "gemm", "process_name"]


def test_without_a_window_it_is_the_longest_step(path):
    names = [event["name"] for event in kept(path, None)]
    assert "ProfilerStep#11" in names
    assert names.count("gemm") == 1


def test_events_are_whole(path):
    before = {event["name"]: event for event in json.loads(path.read_text())["traceEvents"]}
    for event in kept(path, ExportWindow(steps=(12, 12))):
        if event["ph"] == "X":
            known = next(e for e in json.loads(path.read_text())["traceEvents"] if e["ts"] == event["ts"])
            assert {**event, "pid": None} == {**known, "pid": None}
    assert before


def test_ranks_stand_side_by_side_on_one_clock(path):
    data = export_window({"rank 0": path, "rank 1": path}, {"rank 1": -50.0}, ExportWindow(steps=(11, 11)))
    events = json.loads(data)["traceEvents"]
    named = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    assert set(named) == {"rank 0: python", "rank 1: python"}
    work = sorted((e["ts"], e["pid"]) for e in events if e["name"] == "gemm")
    assert [ts for ts, _ in work] == [60.0, 110.0]
    assert {pid for _, pid in work} == {named["rank 1: python"], named["rank 0: python"]}


def test_steps_that_are_not_there(path):
    with pytest.raises(UsageError, match="the marked steps are #10, #11, #12"):
        kept(path, ExportWindow(steps=(40, 41)))


def test_a_window_with_nothing_in_it(path):
    with pytest.raises(UsageError, match="the captures contain no event in the range"):
        kept(path, ExportWindow(times_us=(5000.0, 6000.0)))


def test_damaged_captures_are_cut_too(path, tmp_path):
    broken = tmp_path / "broken.json.gz"
    broken.write_bytes(gzip.compress(path.read_bytes()[:-40]))
    assert [event["name"] for event in kept(broken, ExportWindow(steps=(10, 10)))].count("gemm") == 1


def test_what_is_no_number_makes_no_file_that_nobody_opens(tmp_path):
    path = tmp_path / "broken.json"
    named = {"ph": "M", "name": "process_name", "pid": 0, "args": "python"}
    path.write_text(json.dumps({"traceEvents": [named, {**gpu(1, 2, 1), "dur": float("nan")}, gpu(5, 7, 2)]}))
    assert "NaN" in path.read_text()
    assert "NaN" not in export_window({"rank 0": path}, {}, None).decode()
