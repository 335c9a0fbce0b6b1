"""Nsight Systems exports (SQLite) to captures, one for each GPU.

Times are whole nanoseconds there. Which tables a file has depends on what was traced and on the version of the
exporter: what is missing is told, and the rest is read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paceline.traces.classes import class_of, is_synchronising
from paceline.traces.content import NotACapture
from paceline.traces.intervals import union_of
from paceline.traces.kineto import STEP
from paceline.traces.model import Capture, GpuEvents, Host, Launches, Step

_MAGIC = b"SQLite format 3\x00"
_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES = ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
_LAUNCHES = "CUPTI_ACTIVITY_KIND_RUNTIME"
_RANGES = "NVTX_EVENTS"
_Rows = list[tuple[Any, ...]]


def is_export(path: Path) -> bool:
    """Say whether a file is an SQLite database."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read(path: Path) -> list[Capture]:
    """Read an export, one capture for each GPU in it.

    Raises:
        NotACapture: It has no GPU activity that could be read.
    """
    try:
        with sqlite3.connect(f"file:{path.resolve()}?mode=ro&immutable=1", uri=True) as database:
            return _captures(path, database)
    except sqlite3.Error as error:
        raise NotACapture(f"{path} is no Nsight Systems export that could be read: {error}") from error


def _captures(path: Path, database: sqlite3.Connection) -> list[Capture]:
    tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables & {_KERNELS, *_COPIES}:
        raise NotACapture(f"{path} is a database without GPU activity: no table {_KERNELS}")
    problems = [f"{path}: table {name} is missing" for name in (_KERNELS, *_COPIES, _LAUNCHES) if name not in tables]
    rows = _kernels(database, tables, problems)
    for table in _COPIES:
        if table in tables:
            kind = "Memset" if table.endswith("SET") else "Memcpy"
            rows += _rows(database, table, f"'{kind}'", problems)
    launches, steps, host = _launches(database, tables), _steps(database, tables), _host(database, tables)
    names = _devices(database, tables)
    found = []
    for device in sorted({row[2] for row in rows}):
        own = [row for row in rows if row[2] == device]
        found.append(
            Capture(
                source=str(path),
                rank=None,
                world=None,
                gpu=names.get(device),
                device=device,
                events=_events(own),
                launches=launches,
                steps=steps,
                host=host,
                problems=problems,
            )
        )
    return found


def _kernels(database: sqlite3.Connection, tables: set[str], problems: list[str]) -> _Rows:
    if _KERNELS not in tables:
        return []
    column = next((c for c in ("demangledName", "shortName") if c in _columns(database, _KERNELS)), None)
    if column is None or "StringIds" not in tables:
        problems.append("kernels have no names: table StringIds is missing")
        return _rows(database, _KERNELS, "'kernel'", problems)
    name = f"(SELECT value FROM StringIds WHERE id = {column})"
    return _rows(database, _KERNELS, name, problems)


def _rows(database: sqlite3.Connection, table: str, name: str, problems: list[str]) -> _Rows:
    """Return start, end, device, stream, correlation and name of a table's rows; rows without times are told."""
    columns = _columns(database, table)
    wanted = [c if c in columns else "NULL" for c in ("start", "end", "deviceId", "streamId", "correlationId")]
    rows = database.execute(f'SELECT {", ".join(_quoted(c) for c in wanted)}, {name} FROM "{table}"').fetchall()  # noqa: S608
    whole = [row for row in rows if isinstance(row[0], int) and isinstance(row[1], int)]
    if len(whole) < len(rows):
        problems.append(f"{len(rows) - len(whole)} rows of {table} have no times")
    return [(start, end, device or 0, *rest) for start, end, device, *rest in whole]


def _quoted(column: str) -> str:
    return column if column == "NULL" else f'"{column}"'


def _columns(database: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in database.execute(f'PRAGMA table_info("{table}")')}


def _events(rows: Sequence[tuple[Any, ...]]) -> GpuEvents:
    start, end, _, stream, correlation, name = (list(column) for column in zip(*rows, strict=True))
    places: dict[str, int] = {}
    numbers = [places.setdefault(one or "kernel", len(places)) for one in name]
    classes = np.array([class_of(one, is_copy=one in ("Memcpy", "Memset")) for one in places], np.uint8)
    number = np.array(numbers, np.int32)
    return GpuEvents(
        start_ns=np.array(start, np.int64),
        end_ns=np.array(end, np.int64),
        class_=classes[number],
        name=number,
        stream=np.array([-1 if s is None else s for s in stream], np.int64),
        correlation=np.array([-1 if c is None else c for c in correlation], np.int64),
        names=list(places),
    )


def _launches(database: sqlite3.Connection, tables: set[str]) -> Launches:
    rows: _Rows = []
    if _LAUNCHES in tables:
        rows = database.execute(f'SELECT start, "end", correlationId FROM {_LAUNCHES}').fetchall()  # noqa: S608
    table = np.array([[v if isinstance(v, int) else -1 for v in row] for row in rows], np.int64).reshape(-1, 3)
    return Launches(start_ns=table[:, 0], end_ns=table[:, 1], correlation=table[:, 2])


def _host(database: sqlite3.Connection, tables: set[str]) -> Host:
    """Return calls that wait for the GPU; batches being fetched are not marked in exports."""
    if not {_LAUNCHES, "StringIds"} <= tables or "nameId" not in _columns(database, _LAUNCHES):
        return Host()
    query = f'SELECT start, "end", value FROM {_LAUNCHES} JOIN StringIds ON nameId = id'  # noqa: S608
    rows = [row for row in database.execute(query).fetchall() if is_synchronising(str(row[2])) and row[1] is not None]
    times = np.array([row[:2] for row in rows], np.int64).reshape(-1, 2)
    return Host(synchronising=union_of(times[:, 0], times[:, 1]))


def _steps(database: sqlite3.Connection, tables: set[str]) -> list[Step]:
    if _RANGES not in tables:
        return []
    query = f'SELECT text, start, "end" FROM {_RANGES} WHERE text LIKE \'ProfilerStep%\' AND "end" IS NOT NULL'  # noqa: S608
    rows = database.execute(query).fetchall()
    return [Step(name=text, start_ns=start, end_ns=end) for text, start, end in rows if STEP.match(text)]


def _devices(database: sqlite3.Connection, tables: set[str]) -> dict[int, str]:
    if "TARGET_INFO_GPU" not in tables or not {"id", "name"} <= _columns(database, "TARGET_INFO_GPU"):
        return {}
    return dict(database.execute("SELECT id, name FROM TARGET_INFO_GPU").fetchall())
