"""`paceline trace` as its users call it: files, folders, ranks that are missing or broken."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CAPTURES = Path(__file__).parents[1] / "traces" / "captures"


def trace(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "paceline", "trace", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.fixture
def eight(tmp_path):
    """A folder with eight ranks."""
    folder = tmp_path / "ranks"
    folder.mkdir()
    for file in CAPTURES.glob("dlrm8_*.gz"):
        shutil.copy(file, folder)
    return folder


def test_a_folder_of_ranks(tmp_path, eight):
    done = trace(tmp_path, eight, "--json", "trace.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "trace.json").read_text())
    assert found["schema"] == "paceline.trace/1"
    assert [rank["rank"] for rank in found["ranks"]] == list(range(8))
    first = found["ranks"][0]
    assert (first["span_us"], first["idle_us"], first["exposed_communication_us"]) == (13009.0, 6419.0, 5537.0)
    assert sum(kernel["count"] for kernel in first["kernels"]) == first["events"] == 261
    assert [one["last_rank"] for one in found["collectives"]] == [7, 7, 7, 7, 7, 5, 5, 4]
    assert [one["rank"] for one in found["stragglers"]] == [7, 5]
    assert found["problems"] == []
    waited = [rank["waiting_for_peers_us"] for rank in found["ranks"]]
    assert sum(waited) == pytest.approx(sum(one["waited_us"] for one in found["collectives"]))
    assert waited[7] < min(waited[:7])  # it is the one that is waited for
    assert "rank 7 is last in 5 of 8" in done.stdout
    assert "idle 49%" in done.stdout
    assert "wrote trace.json" in done.stderr + done.stdout


def test_the_window_is_chosen_and_said(tmp_path):
    file = CAPTURES / "resnet50_w4_a.json.gz"
    for window, events in (("all", 9258), ("hta", 7715)):
        done = trace(tmp_path, file, "--window", window, "--json", "trace.json")
        (rank,) = json.loads((tmp_path / "trace.json").read_text())["ranks"]
        assert (rank["window"], rank["events"]) == (window, events)
        assert f"window {window}" in done.stdout


def test_an_nsight_export_has_a_row_for_each_gpu(tmp_path):
    with gzip.open(CAPTURES / "mfu_2gpu_after.sqlite.gz") as packed:
        (tmp_path / "after.sqlite").write_bytes(packed.read())
    done = trace(tmp_path, "after.sqlite", "--json", "trace.json")
    assert done.returncode == 0, done.stderr
    assert [rank["device"] for rank in json.loads((tmp_path / "trace.json").read_text())["ranks"]] == [0, 1]


def test_what_is_broken_missing_or_there_twice_is_told_and_the_rest_is_read(tmp_path, eight):
    (eight / "dlrm8_rank3.json.gz").unlink()
    (eight / "dlrm8_rank5.json.gz").write_bytes(b"")
    shutil.copy(eight / "dlrm8_rank1.json.gz", eight / "again.json.gz")
    (eight / "notes.json").write_text('{"what": "no capture"}')
    done = trace(tmp_path, eight, "--json", "trace.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "trace.json").read_text())
    told = "\n".join(found["problems"])
    assert "dlrm8_rank5.json.gz is empty" in told
    assert "another file contains rank 1 already" in told
    assert "2 of 8 ranks are missing: 3, 5" in told
    assert "notes.json" in told
    assert [one["ranks"] for one in found["collectives"]] == [6] * 8


@pytest.mark.parametrize(
    "content, said",
    [(b"", "is empty"), (b"not a capture", "cannot be read as a profiler capture"), (None, "no file or folder")],
)
def test_nothing_to_read_is_exit_code_2_and_one_line(tmp_path, content, said):
    if content is not None:
        (tmp_path / "what.json").write_bytes(content)
    done = trace(tmp_path, "what.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_without_gpu_events_there_is_no_verdict(tmp_path):
    events = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1.5, "dur": 2.0, "pid": 1, "tid": 1, "args": {}}]
    (tmp_path / "cpu.json").write_text(json.dumps({"traceEvents": events}))
    done = trace(tmp_path, "cpu.json", "--json", "trace.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "trace.json").read_text())
    assert (found["verdict"], found["findings"]) == (None, [])
    assert "verdict: n/a, the captures contain no GPU events" in done.stdout
    assert "the profiler saw no GPU, or was started without ProfilerActivity.CUDA" in done.stdout


def test_no_file_takes_two_results(tmp_path):
    done = trace(tmp_path, CAPTURES / "diff_test.json.gz", "--json", "out", "--markdown", tmp_path / "out")
    assert done.returncode == 2
    assert "cannot write two results to" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["--json", "--markdown", "--html", "--perfetto"])
def test_a_full_disk_is_one_line(tmp_path, option):
    done = trace(tmp_path, CAPTURES / "diff_test.json.gz", option, "/dev/full")
    assert done.returncode == 2
    assert "cannot write /dev/full" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_folder_without_captures(tmp_path):
    done = trace(tmp_path, tmp_path)
    assert done.returncode == 2
    assert "contains no capture" in done.stderr


def test_what_changed_since_another_capture(tmp_path):
    """Of a capture against itself nothing changes; against another one, parts tile the span on both sides."""
    after = CAPTURES / "diff_test.json.gz"
    done = trace(tmp_path, after, "--against", after, "--json", "trace.json")
    found = json.loads((tmp_path / "trace.json").read_text())
    against, steps = found["against"], found["ranks"][0]["steps"]
    assert against["per_step"] is True
    assert all(part["before_us"] == part["after_us"] for part in against["parts"])
    assert all(kernel["change_us"] == 0 for kernel in against["kernels"])
    done = trace(tmp_path, CAPTURES / "resnet50_w4_a.json.gz", "--against", after, "--json", "trace.json")
    against = json.loads((tmp_path / "trace.json").read_text())["against"]
    parts = {part["name"]: part for part in against["parts"]}
    tiles = ("idle", "compute", "exposed communication", "exposed copies")
    for side in ("before_us", "after_us"):
        assert sum(parts[name][side] for name in tiles) == pytest.approx(parts["span"][side])
    assert parts["exposed communication"]["after_us"] == 0
    assert parts["exposed communication"]["before_us"] * steps == pytest.approx(73298)  # of all steps: exact.json
    assert re.search(r"not overlapped communication: [0-9.]+ ms -> none", done.stdout)
    gone = [kernel for kernel in against["kernels"] if kernel["after"]["count"] == 0]
    assert any("nccl" in kernel["name"] for kernel in gone)


def test_who_launched_the_work(tmp_path):
    done = trace(tmp_path, CAPTURES / "b200_eager.json.gz", "--operators", "--json", "trace.json")
    assert done.returncode == 0, done.stderr
    (rank,) = json.loads((tmp_path / "trace.json").read_text())["ranks"]
    total = sum(kernel["total_us"] for kernel in rank["kernels"])
    for key in ("operators", "modules", "lines"):
        assert sum(one["total_us"] for one in rank[key]) == pytest.approx(total)
        assert all(one["launches"] > 0 or one["name"] == "not known" for one in rank[key])
    assert any(one["name"].startswith("vllm/") for one in rank["lines"])
    assert re.search(r"operator: [0-9.]+% of GPU time", done.stdout)


def test_what_would_be_faster_says_by_how_much_and_products_are_in_plain_numbers(tmp_path):
    done = trace(tmp_path, CAPTURES / "b200_eager.json.gz", "--critical-path", "--operators")
    halved = [line for line in done.stdout.splitlines() if "took 1/2: " in line]
    assert len(halved) == 3  # the kernels that take most, whose names are long
    assert all(re.search(r"1/2: [0-9.]+x faster", line) for line in halved)
    assert "product: " in done.stdout
    assert not re.search(r"\de[+-]\d", done.stdout)


def test_ranks_that_talk_by_gloo_on_cpus(tmp_path):
    """Rank 1 comes 20 ms late to each of 4 all-reduces, which end 2 ms apart on their one host."""
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in range(3):
        late, end = 20_000 if rank == 1 else 0, 24_000 + 1_000 * rank
        events = []
        for step in range(4):
            begin, span = step * 30_000, {"ph": "X", "cat": "user_annotation", "pid": 1}
            events.append({**span, "name": f"ProfilerStep#{step}", "ts": begin, "dur": 30_000, "tid": 1})
            times = {"ts": begin + late, "dur": end - late}
            events.append({**span, "name": "gloo:all_reduce", "tid": 2, **times})
        told = {"distributedInfo": {"rank": rank, "world_size": 3}, "host_name": "one"}
        (folder / f"{rank}.json").write_text(json.dumps({**told, "traceEvents": events}))
    done = trace(tmp_path, folder, "--json", "trace.json")
    assert "verdict: rank-straggling (COMM002): rank 1" in done.stdout
    found = json.loads((tmp_path / "trace.json").read_text())
    assert [(one["kind"], one["last_rank"], one["skew_us"]) for one in found["collectives"]] == [
        ("all_reduce", 1, 20_000)
    ] * 4
    assert found["clock_offsets_us"] == {}
    first = found["ranks"][0]
    assert (first["events"], first["span_us"], first["idle_us"], first["waiting_for_peers_us"]) == (
        0,
        None,
        None,
        80_000,
    )


def test_ranks_are_missing_though_no_file_tells_how_many_there_are(tmp_path):
    folder = tmp_path / "ranks"
    folder.mkdir()
    event = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "pid": 0, "tid": 7, "args": {"stream": 7}}
    for rank in (0, 1, 3):
        (folder / f"rank{rank}.json").write_text(json.dumps({"traceEvents": [event]}))
    assert "problem: 1 of at least 4 ranks are missing: 2" in trace(tmp_path, folder).stdout


def test_two_files_without_a_rank_are_both_in_a_cut(tmp_path):
    event = {"ph": "X", "cat": "kernel", "ts": 1, "dur": 2, "pid": 0, "tid": 7, "args": {"stream": 7, "device": 0}}
    for name in ("one", "other"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"traceEvents": [{**event, "name": name}]}))
    assert trace(tmp_path, "one.json", "other.json", "--perfetto", "cut.json").returncode == 0
    events = json.loads((tmp_path / "cut.json").read_text())["traceEvents"]
    assert {event["name"] for event in events} == {"one", "other"}
