"""Reads exports of Nsight Systems (SQLite) as one capture per GPU.

Times are whole nanoseconds. Which tables and columns exist depends on the traced activities and on the version of the
exporter. Missing tables and columns are reported, and the rest is read. One file contains all processes of a machine,
and each process has its own correlation ids. The launches, steps and waits of a GPU are those of the processes that
used this GPU.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paceline.traces.capture import Capture, GpuEvents, HostActivity, Launches, MarkedStep
from paceline.traces.intervals import union_of
from paceline.traces.read.content import NotACapture
from paceline.traces.read.event_classes import class_of, is_synchronising
from paceline.traces.read.kineto import STEP

_MAGIC = b"SQLite format 3\x00"
_KERNELS, _GRAPHS = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_COPIES, _SETS = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"
_CALLS, _RANGES, _TEXTS, _GPUS = "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "StringIds", "TARGET_INFO_GPU"
_ALWAYS = (_KERNELS, _COPIES, _SETS, _CALLS)
_THREAD_BITS = 24  # bits of the thread in a global thread number; the higher bits are its process
_WAYS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
_PLACES = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed"}


def is_export(path: Path) -> bool:
    """Return whether a file is an SQLite database."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read(path: Path) -> list[Capture]:
    """Read an export: one capture per GPU.

    Raises:
        NotACapture: The file has no readable GPU activity.
    """
    try:
        with sqlite3.connect(f"file:{path.resolve()}?mode=ro&immutable=1", uri=True) as database:
            database.text_factory = lambda text: text.decode("utf-8", "replace")
            return _captures(path, _Export(path=path, database=database, columns=_columns(database), problems=[]))
    except sqlite3.Error as error:
        raise NotACapture(f"{path} cannot be read as an Nsight Systems export: {error}") from error


class _Work(NamedTuple):
    """One kernel, copy, memory set or CUDA graph on a GPU."""

    start: int
    end: int
    device: int
    stream: int
    correlation: int
    process: int
    name: str
    is_copy: bool


class _Range(NamedTuple):
    """A runtime call or a marked range on the host."""

    start: int
    end: int
    process: int
    correlation: int
    name: str


@dataclass(frozen=True, kw_only=True)
class _Export:
    """An open export file."""

    path: Path
    database: sqlite3.Connection
    columns: dict[str, set[str]]  # by table
    problems: list[str]

    def rows(self, table: str, *wanted: str) -> list[tuple[Any, ...]]:
        """Return the start, the end and the wanted columns of each row of a table; missing columns are None.

        Rows without start and end are left out and reported as a problem.
        """
        if table not in self.columns:
            return []
        there = ("start", "end", *wanted)
        chosen = ", ".join(f'"{column}"' if column in self.columns[table] else "NULL" for column in there)
        rows = self.database.execute(f'SELECT {chosen} FROM "{table}"').fetchall()  # noqa: S608
        whole = [row for row in rows if isinstance(row[0], int) and isinstance(row[1], int)]
        if len(whole) < len(rows) and table != _RANGES:  # marks without an end are not ranges
            self.problems.append(f"{self.path}: {len(rows) - len(whole)} rows of the table {table} have no times")
        return whole

    def texts(self) -> dict[int, str]:
        """Return the texts in the export's table of strings, by their number."""
        if not {"id", "value"} <= self.columns.get(_TEXTS, set()):
            return {}
        return {number: str(text) for number, text in self.database.execute(f"SELECT id, value FROM {_TEXTS}")}  # noqa: S608


def _columns(database: sqlite3.Connection) -> dict[str, set[str]]:
    tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {table: {row[1] for row in database.execute(f'PRAGMA table_info("{table}")')} for table in tables}


def _captures(path: Path, export: _Export) -> list[Capture]:
    if not export.columns.keys() & {_KERNELS, _GRAPHS, _COPIES, _SETS}:
        raise NotACapture(f"{path} is a database without GPU activity: it has no table {_KERNELS}")
    export.problems.extend(f"{path}: table {name} is missing" for name in _ALWAYS if name not in export.columns)
    texts = export.texts()
    work = [*_kernels(export, texts), *_graphs(export), *_copies(export), *_sets(export)]
    if not work:
        raise NotACapture(f"{path} has no GPU activity: {_KERNELS} and the other activity tables have no readable rows")
    calls, ranges = _calls(export, texts), _ranges(export, texts)
    names = _devices(export)
    found: list[Capture] = []
    for device in sorted({one.device for one in work}):
        own = [one for one in work if one.device == device]
        processes = {one.process for one in own}
        found.append(
            Capture(
                source=str(path),
                rank=None,
                world=None,
                gpu=names.get(device),
                device=device,
                events=_events(own, processes),
                launches=_launches(_of(calls, processes), processes),
                steps=_steps(_of(ranges, processes)),
                host=_host(_of(calls, processes)),
                problems=() if found else export.problems,
            )
        )
    return found


def _of(ranges: Iterable[_Range], processes: set[int]) -> list[_Range]:
    """Return the ranges of some processes, and those of unknown processes (-1).

    All ranges are returned if one of `processes` is unknown.
    """
    return [one for one in ranges if one.process in processes or -1 in processes or one.process == -1]


def _number(value: object) -> int:
    return value if isinstance(value, int) else -1


def _process(thread: object) -> int:
    """Return the process id that a global thread or process id contains; -1 if unknown."""
    return thread >> _THREAD_BITS if isinstance(thread, int) else -1


def _work(row: Sequence[Any], name: str, *, is_copy: bool = False) -> _Work:
    start, end, device, stream, correlation, process, *_ = row
    where = max(0, _number(device)), _number(stream), _number(correlation), _process(process)
    return _Work(start, end, *where, name, is_copy)


_WHERE = ("deviceId", "streamId", "correlationId", "globalPid")


def _kernels(export: _Export, texts: dict[int, str]) -> list[_Work]:
    there = export.columns.get(_KERNELS, set())
    column = next((c for c in ("demangledName", "shortName") if c in there), "")
    if there and not (column and texts):
        export.problems.append(f"{export.path}: kernels have no names: table {_TEXTS} is missing")
    return [_work(row, texts.get(row[6], "kernel")) for row in export.rows(_KERNELS, *_WHERE, column)]


def _graphs(export: _Export) -> list[_Work]:
    """Return the CUDA graphs that were traced as a whole, without their kernels."""
    return [_work(row, f"CUDA graph {row[6]}") for row in export.rows(_GRAPHS, *_WHERE, "graphId")]


def _copies(export: _Export) -> list[_Work]:
    """Return the copies, with the names that PyTorch's profiler gives them."""
    rows = export.rows(_COPIES, *_WHERE, "copyKind", "srcKind", "dstKind")
    return [_work(row, _copy_name(*row[6:]), is_copy=True) for row in rows]


def _copy_name(way: object, source: object, target: object) -> str:
    known = _WAYS.get(_number(way)), _PLACES.get(_number(source)), _PLACES.get(_number(target))
    return "Memcpy {} ({} -> {})".format(*known) if None not in known else "Memcpy"


def _sets(export: _Export) -> list[_Work]:
    return [_work(row, "Memset", is_copy=True) for row in export.rows(_SETS, *_WHERE)]


def _calls(export: _Export, texts: dict[int, str]) -> list[_Range]:
    rows = export.rows(_CALLS, "globalTid", "correlationId", "nameId")
    return [_Range(s, e, _process(thread), _number(c), texts.get(name, "")) for s, e, thread, c, name in rows]


def _ranges(export: _Export, texts: dict[int, str]) -> list[_Range]:
    """Return the marked ranges. The text of a range is in its row, or its row has the number of a text."""
    rows = export.rows(_RANGES, "globalTid", "text", "textId")
    return [
        _Range(s, e, _process(thread), -1, str(text or texts.get(number, ""))) for s, e, thread, text, number in rows
    ]


def _events(work: Sequence[_Work], processes: set[int]) -> GpuEvents:
    places: dict[tuple[str, bool], int] = {}
    number = np.array([places.setdefault((one.name, one.is_copy), len(places)) for one in work], np.int32)
    classes = np.array([class_of(name, is_copy=is_copy) for name, is_copy in places], np.uint8)
    return GpuEvents(
        start_ns=np.array([one.start for one in work], np.int64),
        end_ns=np.array([one.end for one in work], np.int64),
        class_=classes[number],
        name=number,
        stream=np.array([one.stream for one in work], np.int64),
        correlation=_apart(work, processes),
        names=[name for name, _ in places],
    )


def _launches(calls: Sequence[_Range], processes: set[int]) -> Launches:
    return Launches(
        start_ns=np.array([one.start for one in calls], np.int64),
        end_ns=np.array([one.end for one in calls], np.int64),
        correlation=_apart(calls, processes),
    )


def _apart(ranges: Sequence[_Range] | Sequence[_Work], processes: set[int]) -> np.ndarray:
    """Return the correlation ids, changed so that they are unique across processes."""
    places = {process: place for place, process in enumerate(sorted(processes))}
    own = ((one.correlation, places.get(one.process, 0)) for one in ranges)
    return np.array([-1 if number < 0 else number * len(places) + place for number, place in own], np.int64)


def _host(calls: Sequence[_Range]) -> HostActivity:
    """Return when the host waited for the GPU. Exports do not show when it fetched batches."""
    waits = [one for one in calls if is_synchronising(one.name)]
    starts, ends = (np.array(column, np.int64) for column in ([w.start for w in waits], [w.end for w in waits]))
    return HostActivity(synchronising=union_of(starts, ends))


def _steps(ranges: Sequence[_Range]) -> list[MarkedStep]:
    return [MarkedStep(name=one.name, start_ns=one.start, end_ns=one.end) for one in ranges if STEP.match(one.name)]


def _devices(export: _Export) -> dict[int, str]:
    if not {"id", "name"} <= export.columns.get(_GPUS, set()):
        return {}
    return dict(export.database.execute(f"SELECT id, name FROM {_GPUS}").fetchall())  # noqa: S608
