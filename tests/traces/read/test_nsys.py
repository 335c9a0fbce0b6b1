"""Nsight Systems exports: what is there is read, whatever tables and columns are missing."""

from __future__ import annotations

import gzip
import random
import sqlite3
from pathlib import Path

import pytest

from paceline.traces.analyze.gpu_time import break_down
from paceline.traces.capture import launched_at
from paceline.traces.read import nsys
from paceline.traces.read.content import NotACapture
from paceline.traces.read.files import captures_of

REAL = Path(__file__).parents[1] / "captures" / "mfu_2gpu_after.sqlite.gz"
KERNEL, COPY, SET = (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET"))
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"


@pytest.fixture
def made(tmp_path) -> Path:
    """Two GPUs: on each a product, a collective and a copy, with their launches, a step and a call that waits."""
    path = tmp_path / "made.sqlite"
    with sqlite3.connect(path) as database:
        for table in (KERNEL, COPY, SET):
            names = ", demangledName" if table == KERNEL else ""
            database.execute(f"CREATE TABLE {table} (start, end, deviceId, streamId, correlationId{names})")
        database.execute(f"CREATE TABLE {RUNTIME} (start, end, correlationId, nameId)")
        database.execute("CREATE TABLE StringIds (id, value)")
        database.execute("CREATE TABLE NVTX_EVENTS (start, end, text)")
        database.execute("CREATE TABLE TARGET_INFO_GPU (id, name)")
        texts = ["gemm", "ncclDevKernel_AllReduce_Sum_f32", "cudaLaunchKernel", "cudaDeviceSynchronize_v3020"]
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(texts))
        for gpu in (0, 1):
            at = 1000 * gpu
            rows = [(at + 100, at + 300, gpu, 7, 10 * gpu + 1, 0), (at + 250, at + 400, gpu, 9, 10 * gpu + 2, 1)]
            database.executemany(f"INSERT INTO {KERNEL} VALUES (?, ?, ?, ?, ?, ?)", rows)
            database.execute(f"INSERT INTO {COPY} VALUES (?, ?, ?, 7, ?)", (at + 450, at + 500, gpu, 10 * gpu + 3))
            launches = [(at + 10 * n, at + 10 * n + 5, 10 * gpu + n, 2) for n in (1, 2, 3)]
            database.executemany(f"INSERT INTO {RUNTIME} VALUES (?, ?, ?, ?)", launches)
        database.execute(f"INSERT INTO {RUNTIME} VALUES (40, 420, 99, 3)")
        database.execute("INSERT INTO NVTX_EVENTS VALUES (0, 600, 'ProfilerStep#4')")
        database.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H100 80GB HBM3')")
    return path


def without(path: Path, *statements: str) -> Path:
    with sqlite3.connect(path) as database:
        for statement in statements:
            database.execute(statement)
    return path


def test_each_gpu_is_a_capture(made):
    first, second = nsys.read(made)
    assert [(one.device, one.gpu) for one in (first, second)] == [(0, "NVIDIA H100 80GB HBM3"), (1, None)]
    parts = break_down(first.events)
    assert (parts.span_ns, parts.busy_ns, parts.compute_ns, parts.exposed_communication_ns) == (400, 350, 200, 100)
    assert [step.name for step in first.steps] == ["ProfilerStep#4"]
    assert first.host.synchronising.length_ns == 380
    assert break_down(second.events) == parts


@pytest.mark.parametrize("table", [COPY, SET, RUNTIME])
def test_a_table_that_is_missing_is_told(made, table):
    first, _ = nsys.read(without(made, f"DROP TABLE {table}"))
    assert [problem for problem in first.problems if f"table {table} is missing" in problem]
    assert break_down(first.events).compute_ns == 200


@pytest.mark.parametrize("table", ["NVTX_EVENTS", "TARGET_INFO_GPU"])
def test_what_is_often_missing_is_no_problem(made, table):
    first, _ = nsys.read(without(made, f"DROP TABLE {table}"))
    assert not first.problems


def test_without_kernels_copies_are_read(made):
    first, _ = nsys.read(without(made, f"DROP TABLE {KERNEL}"))
    assert break_down(first.events).copy_ns == 50
    assert any(KERNEL in problem for problem in first.problems)


def test_without_names_kernels_are_compute(made):
    first, _ = nsys.read(without(made, "DROP TABLE StringIds"))
    assert break_down(first.events).compute_ns == 300
    assert any("kernels have no names: table StringIds is missing" in problem for problem in first.problems)


@pytest.mark.parametrize("column", ["deviceId", "streamId", "correlationId", "demangledName"])
def test_a_column_that_is_missing(made, column):
    found = nsys.read(without(made, f"ALTER TABLE {KERNEL} DROP COLUMN {column}"))
    assert sum(len(one.events) for one in found) == 6


def test_rows_without_times_are_told(made):
    first, _ = nsys.read(without(made, f"UPDATE {KERNEL} SET end = NULL WHERE deviceId = 0 AND streamId = 9"))
    assert f"{made}: 1 rows of the table {KERNEL} have no times" in first.problems
    assert break_down(first.events).communication_ns == 0


@pytest.mark.parametrize(
    "statement",
    [
        f"ALTER TABLE {RUNTIME} DROP COLUMN correlationId",
        f"ALTER TABLE {RUNTIME} DROP COLUMN end",
        f"ALTER TABLE {RUNTIME} DROP COLUMN nameId",
        "ALTER TABLE NVTX_EVENTS DROP COLUMN text",
        "UPDATE StringIds SET value = CAST(x'80ff' AS TEXT) WHERE id = 2",
    ],
)
def test_a_column_that_is_missing_beside_the_kernels_takes_none_of_them(made, statement):
    found = nsys.read(without(made, statement))
    assert [break_down(one.events).compute_ns for one in found] == [200, 200]


def test_processes_have_correlations_of_their_own(made):
    """Both processes number their launches alike; each waits for its own GPU."""
    both = (KERNEL, COPY)
    without(made, *(f"UPDATE {table} SET correlationId = correlationId % 10" for table in (*both, RUNTIME)))
    without(made, *(f"ALTER TABLE {table} ADD COLUMN globalPid" for table in both))
    without(made, *(f"UPDATE {table} SET globalPid = (deviceId + 5) << 24" for table in both))
    without(made, f"ALTER TABLE {RUNTIME} ADD COLUMN globalTid", "ALTER TABLE NVTX_EVENTS ADD COLUMN globalTid")
    without(made, f"UPDATE {RUNTIME} SET globalTid = ((5 + (start >= 1000)) << 24) + 77")
    first, second = nsys.read(made)
    assert launched_at(first.events.correlation, first.launches).tolist() == [10, 20, 30]
    assert launched_at(second.events.correlation, second.launches).tolist() == [1010, 1020, 1030]
    assert (first.host.synchronising.length_ns, second.host.synchronising.length_ns) == (380, 0)


def test_texts_of_ranges_may_be_named_by_number(made):
    without(made, "ALTER TABLE NVTX_EVENTS ADD COLUMN textId", "INSERT INTO StringIds VALUES (50, 'ProfilerStep#9')")
    first, _ = nsys.read(without(made, "UPDATE NVTX_EVENTS SET text = NULL, textId = 50"))
    assert [step.name for step in first.steps] == ["ProfilerStep#9"]


def test_copies_are_named_by_where_they_go(made):
    without(made, *(f"ALTER TABLE {COPY} ADD COLUMN {column}" for column in ("copyKind", "srcKind", "dstKind")))
    first, _ = nsys.read(without(made, f"UPDATE {COPY} SET copyKind = 1, srcKind = 0, dstKind = 2"))
    assert "Memcpy HtoD (Pageable -> Device)" in first.events.names
    assert break_down(first.events).copy_ns == 50


def test_graphs_that_were_traced_whole_are_gpu_work(made):
    without(made, "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, end, deviceId, streamId, graphId)")
    without(made, "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (600, 900, 0, 7, 3)")
    first, _ = nsys.read(made)
    assert break_down(first.events).compute_ns == 500


def test_without_a_row_there_is_nothing_to_read(made):
    without(made, *(f"DELETE FROM {table}" for table in (KERNEL, COPY, SET)))
    with pytest.raises(NotACapture, match="has no GPU activity"):
        nsys.read(made)


@pytest.mark.parametrize("kind", ["other tables", "cut off", "head only"])
def test_what_is_no_export(made, kind):
    if kind == "other tables":
        without(made, *(f"DROP TABLE {table}" for table in (KERNEL, COPY, SET)))
    else:
        made.write_bytes(made.read_bytes()[: 5000 if kind == "cut off" else 16])
    with pytest.raises(NotACapture):
        nsys.read(made)


@pytest.mark.parametrize("seed", range(15))
def test_whatever_is_done_to_an_export_it_is_read_or_refused(tmp_path, seed):
    chance = random.Random(seed)
    data = bytearray(gzip.decompress(REAL.read_bytes()))
    for _ in range(chance.randint(1, 40)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    path = tmp_path / "broken.sqlite"
    path.write_bytes(data[: chance.randrange(len(data) // 2, len(data))] if chance.random() < 0.5 else data)
    try:
        found = captures_of(path)
    except NotACapture:
        return
    for one in found:
        parts = break_down(one.events)
        exposed = parts.exposed_communication_ns + parts.exposed_copy_ns
        assert parts.idle_ns + parts.compute_ns + exposed == parts.span_ns
