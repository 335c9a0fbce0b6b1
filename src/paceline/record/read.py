"""Read a run folder, also during the run or after a process was killed. Incomplete ends of files are dropped.

For a report, only stretches of a long run are read: blocks of consecutive rows, evenly spaced from the first step to
the last. Medians, shares and trends of some hundred thousand steps are as accurate as those of millions. The memory and
time of a report therefore do not depend on the length of the run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Any

import msgspec
import numpy as np

from paceline.core.errors import NewerSchemaError, RecordError
from paceline.record import layout
from paceline.record.ranks import in_several_threads, of_last_command, select_ranks
from paceline.record.run import JsonObject, Launch, Rank, Rows, Run, Worker

_FORMATS = {"I": "<u4", "H": "<u2", "Q": "<u8", "f": "<f4", "d": "<f8"}
MOST_ROWS = 200_000  # for all ranks of a run together
LEAST_ROWS = 1_024  # for one rank
_STRETCHES = 64
_LEAST_STRETCH = 128
_CHUNK_ROWS = 1 << 16


def rows_type(fields: Sequence[str], packing: Struct) -> np.dtype[Any]:
    """Return the NumPy data type of rows that are packed with a `struct.Struct`."""
    letters = packing.format.removeprefix("<")
    return np.dtype([(name, _FORMATS[letter]) for name, letter in zip(fields, letters, strict=True)])


STEP_TYPE = rows_type(layout.STEP_FIELDS, layout.STEP)
TICK_TYPE = rows_type(layout.TICK_FIELDS, layout.TICK)


def read_run(folder: Path, *, in_stretches: bool = False) -> Run:
    """Read the current state of a run folder.

    Args:
        folder: The folder of the run.
        in_stretches: Whether to read only some stretches of the steps of a long run, for a report.

    Raises:
        RecordError: The folder is missing or contains no run.
        NewerSchemaError: A newer Paceline wrote the run.
    """
    if not folder.is_dir():
        raise RecordError(
            f"there is no run folder at {folder}; `paceline report` without a path lists the runs that there are"
        )
    problems: list[str] = []
    launches = tuple(_launches(folder, problems))
    ranks = list(_ranks(folder, problems, in_stretches=in_stretches))
    if not launches and not ranks:
        raise RecordError(f"{folder} holds no run: neither launch-*.json nor ranks/; give the folder of one run")
    last, trained, before = of_last_command(launches, [rank for rank in ranks if len(rank.steps)])
    selection = select_ranks(trained)
    problems += [*selection.problems, *in_several_threads(selection.ranks)]
    if before:
        problems.append("commands were recorded under this run id one after the other; this report is of the last one")
    return Run(
        run_id=folder.name,
        folder=folder,
        launches=tuple(last),
        ranks=selection.ranks,
        earlier=selection.other_attempts,
        beside=(*selection.beside, *before),
        stepless=tuple(rank for rank in ranks if not len(rank.steps)),
        workers=tuple(_workers(folder, problems)),
        gauges={
            path.stem: tuple(_json_lines(path, problems)) for path in _files(folder / layout.GAUGES_DIR, "*.jsonl")
        },
        problems=tuple(problems),
    )


def read_launches(folder: Path) -> tuple[Launch, ...]:
    """Read only the launch records: how a run was started and how it ended. Unreadable records are left out.

    This function is fast enough for lists of runs.

    Raises:
        NewerSchemaError: A newer Paceline wrote the run.
    """
    return tuple(_launches(folder, []))


def _files(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.glob(pattern)) if folder.is_dir() else []


def _check_schema(record: JsonObject, path: Path) -> None:
    schema = record.get("schema", 0)
    if isinstance(schema, int) and schema > layout.SCHEMA_VERSION:
        raise NewerSchemaError(
            f"{path} has record schema {schema}; this Paceline reads up to {layout.SCHEMA_VERSION}: "
            "upgrade with `pip install -U paceline`"
        )


def _json(path: Path, problems: list[str]) -> dict[str, Any] | None:
    try:
        record = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        problems.append(f"{path.name} in {path.parent.name} could not be read: {error}")
        return None
    if not isinstance(record, dict):
        problems.append(f"{path.name} in {path.parent.name} is not a JSON object")
        return None
    _check_schema(record, path)
    return record


def _has_numbers(record: JsonObject, names: Sequence[str], path: Path, problems: list[str]) -> bool:
    """Return whether these fields are whole numbers or missing; otherwise add an entry to ``problems``."""
    wrong = [name for name in names if not isinstance(record.get(name, 0), int)]
    if wrong:
        problems.append(f"{path.name} in {path.parent.name} is damaged ({', '.join(wrong)}); it was left out")
    return not wrong


def _json_lines(path: Path, problems: list[str]) -> Iterator[JsonObject]:
    """Yield the records of a JSON lines file.

    An incomplete last line is ignored. Another damaged line is skipped and reported in ``problems``.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        problems.append(f"{path.name} could not be read: {error}")
        return
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            record = msgspec.json.decode(line)
        except msgspec.DecodeError:
            if number < len(lines):
                problems.append(f"line {number} of {path.name} is damaged; it was skipped")
            continue
        if isinstance(record, dict):
            if number == 1:
                _check_schema(record, path)
            yield record


def _launches(folder: Path, problems: list[str]) -> Iterator[Launch]:
    for path in _files(folder, "launch-*.json"):
        record = _json(path, problems)
        if record is None:
            continue
        ended = _json(folder / path.name.replace("launch-", "end-", 1), problems) or {}
        try:
            yield msgspec.convert({**record, **ended}, Launch, strict=False)
        except msgspec.ValidationError as error:
            problems.append(f"{path.name} is not a launch record: {error}")


def _read_rows(path: Path, row_type: np.dtype[Any], problems: list[str]) -> Rows:
    """Read the complete rows of a file; an incomplete last row (after a kill) is left out."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        data = b""
    except OSError as error:
        problems.append(f"{path.name} in {path.parent.name} could not be read: {error}")
        data = b""
    whole = len(data) - len(data) % row_type.itemsize
    return np.frombuffer(data[:whole], dtype=row_type)


def _read_ticks(path: Path, meta: JsonObject, problems: list[str]) -> Rows:
    """Read the ticks of any record version; fields that the version does not have are NaN."""
    size = meta.get("tick_bytes", layout.FIRST_TICK_BYTES)
    names = [n for n in TICK_TYPE.names or () if TICK_TYPE.fields and TICK_TYPE.fields[n][1] < size]
    written = np.dtype([(name, TICK_TYPE[name]) for name in names])
    if written.itemsize == TICK_TYPE.itemsize:
        return _read_rows(path, TICK_TYPE, problems)
    rows = _read_rows(path, written, problems)
    whole = np.zeros(len(rows), TICK_TYPE)
    for name in TICK_TYPE.names or ():
        whole[name] = rows[name] if name in names else np.nan
    return whole


def _read_steps(path: Path, most: int | None, problems: list[str]) -> tuple[Rows, int | None]:
    """Read the step rows of a process.

    With more than ``most`` rows, read only stretches of them and also return the number of rows in the file; otherwise
    the number is None.
    """
    count = rows_in(path, STEP_TYPE)
    if most is None or count <= most:
        return _read_rows(path, STEP_TYPE, problems), None
    try:
        return read_stretches(path, STEP_TYPE, stretches(count, most)), count
    except OSError as error:
        problems.append(f"{path.name} in {path.parent.name} could not be read: {error}")
        return np.zeros(0, STEP_TYPE), None


def read_losses(rank: Rank) -> Rows:
    """Return all steps of a rank, as rows with at least the fields index, flags, wall_s, samples and loss."""
    if rank.recorded is None:
        return rank.steps
    names = ["index", "flags", "wall_s", "samples", "loss"]
    narrow = np.dtype([(name, STEP_TYPE[name]) for name in names])
    read = np.zeros(rank.recorded, narrow)
    at = 0
    for chunk in chunks(rank.folder / layout.STEPS_FILE, STEP_TYPE):
        steps = chunk[(chunk["flags"] & layout.FLAG_TAIL) == 0][: rank.recorded - at]
        for name in names:
            read[name][at : at + len(steps)] = steps[name]
        at += len(steps)
    return read[:at]


def _ranks(folder: Path, problems: list[str], *, in_stretches: bool) -> Iterator[Rank]:
    folders = _files(folder / layout.RANKS_DIR, "*")
    most = rows_of_each(len(folders)) if in_stretches else None
    for path in folders:
        meta = _json(path / layout.META_FILE, problems)
        if meta is None or not _has_numbers(
            meta, ("pid", "rank", "world", "tick_bytes"), path / layout.META_FILE, problems
        ):
            continue
        rows, count = _read_steps(path / layout.STEPS_FILE, most, problems)
        tail = (rows["flags"] & layout.FLAG_TAIL) != 0
        yield Rank(
            folder=path,
            host=str(meta.get("host", "")),
            pid=int(meta.get("pid", 0)),
            rank=int(meta.get("rank", 0)),
            world=int(meta.get("world", 1)),
            meta=meta,
            steps=rows[~tail],
            recorded=None if count is None else count - int(tail.sum()),
            tail=rows[tail],
            ticks=_read_ticks(path / layout.TICKS_FILE, meta, problems),
            notes=tuple(_json_lines(path / layout.NOTES_FILE, problems)) if (path / layout.NOTES_FILE).exists() else (),
            summary=_json(path / layout.SUMMARY_FILE, problems) or {},
        )


def _workers(folder: Path, problems: list[str]) -> Iterator[Worker]:
    for path in _files(folder / layout.WORKERS_DIR, "*.jsonl"):
        records = list(_json_lines(path, problems))
        if not records or records[0].get("kind") != "worker":
            continue
        if not _has_numbers(records[0], ("pid", "parent_pid", "worker_id", "num_workers", "base_seed"), path, problems):
            continue
        head = records[0]
        yield Worker(
            host=str(head.get("host", "")),
            pid=int(head.get("pid", 0)),
            parent_pid=int(head.get("parent_pid", 0)),
            worker_id=int(head.get("worker_id", 0)),
            num_workers=int(head.get("num_workers", 0)),
            base_seed=int(head.get("base_seed", 0)),
            meta=head,
            ticks=tuple(r for r in records[1:] if r.get("kind") == "tick"),
        )


# ---------------------------------------------------------------------------------------------- stretches of a long run


def rows_in(path: Path, row_type: np.dtype[Any]) -> int:
    """Return the number of complete rows in a file; 0 if there is no file."""
    try:
        return os.stat(path).st_size // row_type.itemsize
    except OSError:
        return 0


def rows_of_each(processes: int) -> int:
    """Return the largest number of step rows to read per process, which keeps the total near a fixed limit."""
    return max(LEAST_ROWS, MOST_ROWS // max(1, processes))


def stretches(count: int, most: int) -> list[tuple[int, int]]:
    """Return (first row, end row) of the stretches to read, end exclusive; one stretch of all rows if `most` allows."""
    if count <= most:
        return [(0, count)]
    number = max(2, min(_STRETCHES, most // _LEAST_STRETCH))
    length = most // number
    starts = np.linspace(0, count - length, number).astype(np.int64)
    return [(int(start), int(start) + length) for start in starts]


def read_stretches(path: Path, row_type: np.dtype[Any], parts: Sequence[tuple[int, int]]) -> Rows:
    """Read the rows of the given stretches."""
    with open(path, "rb") as file:
        read = []
        for start, end in parts:
            file.seek(start * row_type.itemsize)
            read.append(np.frombuffer(file.read((end - start) * row_type.itemsize), row_type))
    return np.concatenate(read)


def chunks(path: Path, row_type: np.dtype[Any]) -> Iterator[Rows]:
    """Yield all complete rows of a file in chunks."""
    with open(path, "rb") as file:
        while data := file.read(_CHUNK_ROWS * row_type.itemsize):
            yield np.frombuffer(data[: len(data) - len(data) % row_type.itemsize], row_type)
