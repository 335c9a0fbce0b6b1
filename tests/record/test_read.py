"""Runs that are whole, torn, damaged, growing, or written by many."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.explain.build import FIRST_NS, HOST, OFFSET_NS, RunFolder, S, pack, plain, step, steps

from paceline.core.errors import NewerSchemaError, RecordError
from paceline.explain.analysis.breakdown import break_down, timeline
from paceline.explain.analysis.loss import loss_curve
from paceline.record import layout
from paceline.record import read as module
from paceline.record.layout import FLAG_TAIL, STEP, STEP_FIELDS, TICK, TICK_FIELDS
from paceline.record.ranks import of_last_command
from paceline.record.read import STEP_TYPE, TICK_TYPE, read_run, rows_of_each, stretches
from paceline.record.run import Launch, column


def rank_folder(run: RunFolder, pid: int = 1000) -> Path:
    return run.folder / "ranks" / f"{HOST}-{pid}"


@pytest.fixture
def run(tmp_path) -> RunFolder:
    rows = steps(9, lambda n: {"forward": n + 1, "loss": n / 4}, backward=2, optimizer=1, samples=16.0)
    folder = RunFolder(tmp_path).rank(rows, tail=step(gap=5))
    folder.worker(0, {"produce_s": 1.0, "cpu_s": 0.5, "batches": 3})
    return folder.gauges(own_cpu_cores=1.0).launch()


def test_the_layout_is_what_is_written_down():
    """These numbers are in files on people's disks."""
    assert layout.SCHEMA_VERSION == 1
    assert (STEP.size, TICK.size) == (92, 120)
    assert (STEP_TYPE.itemsize, TICK_TYPE.itemsize) == (92, 120)
    assert STEP_TYPE.names == STEP_FIELDS
    assert TICK_TYPE.names == TICK_FIELDS
    assert len(layout.PHASES) == 9
    assert [STEP_TYPE.fields[name][1] for name in ("end_ns", "wall_s", "data_wait_s", "gap_s", "loss")] == [
        12,
        20,
        24,
        60,
        84,
    ]
    assert layout.BATCH_BOUNDS_S[0] == 1e-4
    assert len(layout.BATCH_BOUNDS_S) == 20


def test_what_was_packed_is_read(run):
    (rank,) = run.read().ranks
    assert len(rank.steps) == 9
    assert rank.steps["index"].tolist() == list(range(9))
    assert column(rank.steps, "forward_s") == pytest.approx(np.arange(1, 10) / 1e3)
    assert column(rank.steps, "wall_s") == pytest.approx(np.arange(4, 13) / 1e3)
    assert np.diff(rank.steps["end_ns"]).tolist() == [n * 1_000_000 for n in range(5, 13)]
    assert column(rank.steps, "loss").tolist() == [n / 4 for n in range(9)]
    assert set(rank.steps["samples"].tolist()) == {16.0}
    assert len(rank.tail) == 1
    assert rank.tail["flags"][0] & FLAG_TAIL
    assert len(rank.ticks) == 20
    assert column(rank.ticks, "step")[-1] == 9
    assert (rank.host, rank.pid, rank.rank, rank.world, rank.device) == (HOST, 1000, 0, 1, "cpu")
    assert [note["kind"] for note in rank.noted("end")] == ["end"]


def test_the_rest_of_a_run(run):
    found = run.read()
    assert found.finished
    assert found.problems == ()
    assert (found.launches[0].exit_code, found.launches[0].command) == (0, ["python", "train.py"])
    assert [w.last["batches"] for w in found.workers] == [3]
    assert [line["kind"] for line in found.gauges[HOST]] == ["header", *["host"] * 5]
    assert found.run_id == "run"
    assert found.earlier == ()


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(RecordError, match="no run folder at"):
        read_run(tmp_path / "absent")
    with pytest.raises(RecordError, match="holds no run"):
        read_run(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(RecordError, match="no run folder at"):
        read_run(tmp_path / "file")


def test_a_run_that_has_only_been_launched(tmp_path):
    found = RunFolder(tmp_path).launch(exit_code=None).read()
    assert (found.ranks, found.workers, found.finished) == ((), (), False)


def test_ticks_of_a_record_without_the_later_fields(tmp_path):
    """The first version wrote 96 bytes for each tick, and no `tick_bytes`."""
    run = RunFolder(tmp_path).rank(plain(10), meta={})
    place = next((run.folder / "ranks").iterdir())
    meta = json.loads((place / layout.META_FILE).read_text())
    del meta["tick_bytes"]
    (place / layout.META_FILE).write_text(json.dumps(meta))
    packed = (place / layout.TICKS_FILE).read_bytes()
    cut = [packed[at : at + layout.FIRST_TICK_BYTES] for at in range(0, len(packed), TICK.size)]
    (place / layout.TICKS_FILE).write_bytes(b"".join(cut))
    ticks = run.read().ranks[0].ticks
    assert ticks["step"][-1] == 10
    assert np.isnan(ticks["unshared_bytes"]).all()
    assert not np.isnan(ticks["rss_bytes"]).any()


@pytest.mark.parametrize("name, size", [(layout.STEPS_FILE, STEP.size), (layout.TICKS_FILE, TICK.size)])
def test_rows_torn_at_every_byte(tmp_path, name, size):
    """Whatever a kill leaves of the last row, the rows before it are read."""
    run = RunFolder(tmp_path).rank(plain(3), count=3).launch()
    path = rank_folder(run) / name
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        found = run.read()
        assert found.problems == ()
        if name == layout.TICKS_FILE:
            assert len(found.ranks[0].ticks) == length // size
        elif length < size:
            assert found.ranks == ()  # it has not trained yet
        else:
            assert len(found.ranks[0].steps) == length // size


@pytest.mark.parametrize("name", [layout.META_FILE, layout.SUMMARY_FILE, layout.NOTES_FILE])
def test_json_torn_at_every_byte(tmp_path, name):
    notes = ({"kind": "epoch", "loader": 0, "base_seed": 1}, {"kind": "end", "exception": None})
    run = RunFolder(tmp_path).rank(plain(3), notes=notes, summary={"hot": []}).launch()
    path = rank_folder(run) / name
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        found = run.read()
        if name == layout.NOTES_FILE:  # appended to: a torn end is what a kill leaves
            assert found.problems == ()
            complete = whole[:length].count(b"\n") + whole[:length].endswith(b"}")
            assert len(found.ranks[0].notes) == complete
        else:  # replaced whole: torn, it was damaged by something else
            assert len(found.problems) == 1
            assert name in found.problems[0]


def test_a_damaged_line_is_skipped_and_told(run):
    path = run.folder / "gauges" / f"{HOST}.jsonl"
    lines = path.read_bytes().split(b"\n")
    lines[2] = lines[2][:20] + b"\xff\x00" + lines[2][22:]
    lines.insert(4, b"")
    lines.insert(5, b"[1, 2]")
    path.write_bytes(b"\n".join(lines))
    found = run.read()
    assert len(found.gauges[HOST]) == 5
    assert found.problems == (f"line 3 of {HOST}.jsonl is damaged; it was skipped",)


@pytest.mark.parametrize(
    "text", ["", "null", "[]", '"text"', "{", '{"pid": "many"}', '{"rank": null}', '{"world": 1.5}']
)
def test_a_damaged_meta_leaves_the_rank_out(run, text):
    run.rank(plain(4), 1)
    (rank_folder(run, 1001) / layout.META_FILE).write_text(text)
    found = run.read()
    assert [r.pid for r in found.ranks] == [1000]
    assert len(found.problems) == 1
    assert "meta.json" in found.problems[0]


def test_fields_of_other_kinds_do_no_harm(run):
    meta = json.loads((rank_folder(run) / layout.META_FILE).read_text())
    meta |= {"host": None, "device": 5, "started_unix_s": "yesterday", "unheard": {"of": 1}}
    (rank_folder(run) / layout.META_FILE).write_text(json.dumps(meta))
    (rank,) = run.read().ranks
    assert (rank.host, rank.device) == ("None", "5")


@pytest.mark.parametrize("record", ['{"pid": 1}', "[]", "{"])
def test_a_damaged_launch_is_told(run, record):
    (run.folder / "launch-other-9.json").write_text(record)
    found = run.read()
    assert len(found.launches) == 1
    assert len(found.problems) == 1
    assert "launch-other-9.json" in found.problems[0]


def test_a_worker_without_a_head_is_left_out(run):
    (run.folder / "workers" / "node-a-1.jsonl").write_text('{"kind": "tick", "batches": 1}\n')
    (run.folder / "workers" / "node-a-2.jsonl").write_text("")
    (run.folder / "workers" / "node-a-3.jsonl").write_text('{"kind": "worker", "pid": "x"}\n')
    assert len(run.read().workers) == 1


def test_a_rank_that_has_written_no_meta_yet(run):
    (run.folder / "ranks" / "node-a-5").mkdir()
    (run.folder / "ranks" / "node-a-5" / "meta.json.5.tmp").write_text("{")
    found = run.read()
    assert (len(found.ranks), found.problems) == (1, ())


def test_a_stray_file_among_the_ranks(run):
    (run.folder / "ranks" / ".DS_Store").write_text("x")
    assert len(run.read().ranks) == 1


@pytest.mark.parametrize("place", ["launch", "meta", "worker", "gauges"])
def test_a_newer_schema_names_both_versions(run, place):
    paths = {
        "launch": run.folder / f"launch-{HOST}-7.json",
        "meta": rank_folder(run) / layout.META_FILE,
        "worker": run.folder / "workers" / f"{HOST}-2000.jsonl",
        "gauges": run.folder / "gauges" / f"{HOST}.jsonl",
    }
    path = paths[place]
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 2', 1))
    with pytest.raises(NewerSchemaError, match="schema 2; this Paceline reads up to 1"):
        run.read()


def test_a_run_that_grows_while_it_is_read(tmp_path):
    run = RunFolder(tmp_path).rank(plain(1), notes=()).launch(exit_code=None)
    folder = rank_folder(run)
    data = b"".join(pack(number, FIRST_NS + number * S, step(forward=1, wall=1))[0] for number in range(1, 400))
    notes = b"".join(json.dumps({"kind": "epoch", "loader": n, "text": "x" * n}).encode() + b"\n" for n in range(200))

    def write():
        with (
            open(folder / layout.STEPS_FILE, "ab", buffering=0) as rows,
            open(folder / layout.NOTES_FILE, "ab", buffering=0) as lines,
        ):
            while rows.tell() < STEP.size + len(data):
                at = rows.tell() - STEP.size
                rows.write(data[at : at + 37])  # never a whole row at a time
                lines.write(notes[lines.tell() : lines.tell() + 53])
            lines.write(notes[lines.tell() :])

    writer = threading.Thread(target=write)
    writer.start()
    counts = []
    while writer.is_alive() or not counts:
        found = run.read()
        assert found.problems == ()
        assert found.ranks[0].steps["index"].tolist() == list(range(len(found.ranks[0].steps)))
        assert [note["loader"] for note in found.ranks[0].notes] == list(range(len(found.ranks[0].notes)))
        counts.append(len(found.ranks[0].steps))
    writer.join()
    last = run.read()
    assert counts == sorted(counts)
    assert (len(last.ranks[0].steps), len(last.ranks[0].notes)) == (400, 200)


# -- ranks and lives ---------------------------------------------------------------------------------

JOINED = {"world": 2, "distributed": True}


def started(seconds: float) -> dict[str, float]:
    return {"started_unix_s": (FIRST_NS + OFFSET_NS) / S + seconds}


def test_two_ranks(tmp_path):
    run = RunFolder(tmp_path).rank(plain(4), 1, meta=JOINED).rank(plain(5), 0, meta=JOINED).launch()
    found = run.read()
    assert [(r.rank, r.world, len(r.steps)) for r in found.ranks] == [(0, 2, 5), (1, 2, 4)]
    assert found.earlier == ()


def test_of_restarted_ranks_the_last_life_counts(tmp_path):
    run = RunFolder(tmp_path)
    for life, pids in enumerate([(10, 11), (90, 91), (50, 51)]):
        for number, pid in enumerate(pids):
            run.rank(plain(3 + life), number, pid=pid, meta=JOINED | started(100 * life))
    found = run.launch().read()
    assert [(r.rank, r.pid, len(r.steps)) for r in found.ranks] == [(0, 50, 5), (1, 51, 5)]
    assert [r.pid for r in found.earlier] == [10, 11, 90, 91]


def test_a_life_that_did_not_come_to_a_step_does_not_hide_the_one_before(tmp_path):
    run = RunFolder(tmp_path).rank(plain(5), 0, meta=JOINED).rank(plain(5), 1, meta=JOINED)
    run.rank([], 0, pid=70, meta=JOINED | started(100))
    found = run.launch().read()
    assert [r.pid for r in found.ranks] == [1000, 1001]


def test_processes_that_all_call_themselves_rank_0(tmp_path):
    """`xargs -P`, a sweep, or a launcher that sets no RANK: they are numbered by their start."""
    run = RunFolder(tmp_path)
    for pid, start in ((30, 5), (10, 9), (20, 1)):
        run.rank(plain(4), 0, pid=pid, meta=started(start))
    found = run.launch().read()
    assert [(r.rank, r.pid) for r in found.ranks] == [(0, 20), (1, 30), (2, 10)]
    assert found.earlier == ()


def at(seconds: float) -> dict[str, float]:
    """A process that begins to train so many seconds later than the others."""
    return started(seconds) | {"first_ns": FIRST_NS + round(seconds * S)}


def test_processes_one_after_the_other_are_not_ranks_of_one_another(tmp_path):
    run = RunFolder(tmp_path)
    for number, count in enumerate((150, 151, 149)):
        run.rank(plain(count), 0, pid=10 + number, meta=at(10.0 * number))
    found = run.launch().read()
    assert [(r.rank, r.pid) for r in found.ranks] == [(0, 11)]
    assert [r.pid for r in found.beside] == [10, 12]
    assert "process 11 (151 steps)" in found.problems[0]
    assert "process 10 (150 steps)" in found.problems[0]


def test_a_process_of_three_steps_beside_a_training_is_no_rank(tmp_path):
    run = RunFolder(tmp_path).rank(plain(3), 0, pid=5, meta=at(0.0)).rank(plain(200), 0, pid=6, meta=at(0.5))
    found = run.launch().read()
    assert [(r.rank, r.pid, len(r.steps)) for r in found.ranks] == [(0, 6, 200)]
    assert [r.pid for r in found.beside] == [5]


def test_after_a_restart_the_longest_life_counts_and_all_steps_are_told(tmp_path):
    run = RunFolder(tmp_path)
    for life, count in enumerate((300, 3)):
        for number in range(2):
            run.rank(plain(count), number, pid=10 * life + number, meta=JOINED | at(100.0 * life))
    found = run.launch().read()
    assert [(r.rank, r.pid, len(r.steps)) for r in found.ranks] == [(0, 0, 300), (1, 1, 300)]
    assert [r.pid for r in found.earlier] == [10, 11]
    assert "303 steps in 2 lives" in found.problems[0]


def test_a_rank_that_was_restarted_alone_stays_with_the_others(tmp_path):
    run = RunFolder(tmp_path).rank(plain(300), 0, pid=10, meta=JOINED | at(0.0))
    run.rank(plain(20), 1, pid=11, meta=JOINED | at(0.0)).rank(plain(250), 1, pid=12, meta=JOINED | at(0.5))
    assert [r.pid for r in run.launch().read().ranks] == [10, 12]


def test_a_process_that_trains_alone_is_no_rank_of_the_job_beside_it(tmp_path):
    """A probe fitted after distributed training, in the same command, must not take rank 0's place."""
    run = RunFolder(tmp_path).rank(plain(5), 0, meta=JOINED).rank(plain(5), 1, meta=JOINED)
    run.rank(plain(3), 0, pid=77, meta=started(500))
    found = run.launch().read()
    assert [r.pid for r in found.ranks] == [1000, 1001]
    assert found.earlier == ()
    assert found.problems == ("process 77 trained alone beside the 2 ranks; it was left out",)


# ---------------------------------------------------------------------------------------------- stretches of a long run


@given(st.integers(0, 10**7), st.integers(512, 300_000))
@settings(deadline=None)
def test_stretches_cover_both_ends_in_order_and_stay_within_the_limit(count, most):
    parts = stretches(count, most)
    assert sum(end - start for start, end in parts) <= max(most, 0) or count <= most
    assert parts[0][0] == 0
    assert parts[-1][1] == count
    starts = [start for start, _ in parts]
    assert starts == sorted(starts)
    assert all(before[1] <= after[0] for before, after in zip(parts, parts[1:], strict=False))


def test_a_thousand_ranks_share_the_rows_of_a_run():
    assert rows_of_each(1) == module.MOST_ROWS
    assert 1000 * rows_of_each(1000) < 1_100_000


@pytest.fixture
def long_run(tmp_path, monkeypatch):
    """20,000 steps, of which 4,096 may be read; the loss is infinite once, in the middle."""
    monkeypatch.setattr(module, "MOST_ROWS", 4096)
    rows = steps(
        20_000,
        lambda n: {"loss": float("inf") if n == 9_999 else 1.0 + 1 / (n + 1), "data_wait": 10.0 if n % 4 == 0 else 0.0},
        forward=3,
        backward=6,
        optimizer=1,
    )
    folder = RunFolder(tmp_path).rank(rows, tail={"gap": 5}).launch()
    return folder.read(), read_run(folder.folder, in_stretches=True)


def test_counts_are_exact_and_statistics_are_those_of_all_steps(long_run):
    whole, part = (run.ranks[0] for run in long_run)
    assert len(part.steps) <= 4096 < len(whole.steps)
    assert (part.count, len(part.tail)) == (whole.count, len(whole.tail)) == (20_000, 1)
    exact, sampled = break_down(whole, ()), break_down(part, ())
    assert sampled.steps == exact.steps
    assert sampled.micro_steps == pytest.approx(exact.micro_steps, rel=0.01)
    assert sampled.seconds["data_wait"] == pytest.approx(exact.seconds["data_wait"], rel=0.02)
    assert sampled.shares["backward"] == pytest.approx(exact.shares["backward"], rel=0.02)
    assert sampled.step_s.value == pytest.approx(exact.step_s.value)


def test_no_loss_is_left_out(long_run):
    whole, part = (loss_curve(run.ranks[0], None) for run in long_run)
    assert part.first_bad_step == whole.first_bad_step == 9_999
    assert (part.first, part.last) == (whole.first, whole.last)
    assert part.seconds[-1] == pytest.approx(whole.seconds[-1])


def test_the_timeline_reaches_from_the_first_step_to_the_last(long_run):
    whole, part = (timeline(run.ranks[0]) for run in long_run)
    assert sum(point.steps for point in part) == sum(point.steps for point in whole) == 20_000
    assert part[-1].seconds == pytest.approx(whole[-1].seconds, rel=0.01)


def test_a_short_run_is_read_whole(tmp_path):
    folder = RunFolder(tmp_path).rank(plain(100)).launch()
    rank = read_run(folder.folder, in_stretches=True).ranks[0]
    assert rank.recorded is None
    assert rank.steps.tobytes() == folder.read().ranks[0].steps.tobytes()


def command(started_s: float, wall_s: float | None) -> Launch:
    return Launch(host=HOST, pid=7, argv=[], command=[], started_unix_s=started_s, started_ns=0, wall_s=wall_s)


def process(started_s: float) -> Any:
    return SimpleNamespace(meta={"started_unix_s": started_s})


@pytest.mark.parametrize(
    "walls, trained, last",
    [
        ((10.0, 10.0), (101.0, 121.0), (121.0,)),  # a run id that is used again
        ((None, 10.0), (101.0, 121.0), (101.0, 121.0)),  # the first command may still run, on another host
        ((30.0, 10.0), (101.0, 121.0), (101.0, 121.0)),  # two hosts at the same time
        ((10.0, 10.0), (101.0,), (101.0,)),  # the second command has not trained
    ],
)
def test_the_report_is_of_the_last_of_commands_one_after_the_other(walls, trained, last):
    launches = [command(100.0, walls[0]), command(120.0, walls[1])]
    of_last, found, earlier = of_last_command(launches, [process(started) for started in trained])
    assert tuple(one.meta["started_unix_s"] for one in found) == last
    assert len(earlier) == len(trained) - len(last)
    assert len(of_last) == (1 if earlier else 2)
