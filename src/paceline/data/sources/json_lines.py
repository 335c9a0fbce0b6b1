"""JSON lines: each line is an object, and each field a column. One pass over the files finds where lines begin."""

from __future__ import annotations

import json
import os
from codecs import BOM_UTF8
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import UsageError
from paceline.data.format.column_kinds import column_names, has_nan, json_of, number_of, text_of
from paceline.data.format.model import Column, ColumnKind, Sample, Value
from paceline.data.sources import BadSample
from paceline.data.sources.files import times_of

LINES = (".jsonl", ".ndjson")
_KINDS: dict[type, ColumnKind] = {bool: "int", int: "int", float: "float", str: "text"}  # else JSON
_BOTH = {"int", "float"}
_GZIP = b"\x1f\x8b"  # the first bytes of a gzip file

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class JsonLines:
    """The objects in files of JSON lines."""

    files: Sequence[Path]
    file: Numbers  # the index of the file of each object
    line: Numbers  # the number of each line, from 1
    offset: Numbers  # of each line in its file, in bytes
    length: Numbers  # of each line, in bytes
    kinds: Sequence[tuple[str, ColumnKind]]  # of fields, in order of first appearance
    classes: Sequence[str] = ()
    left_out: Sequence[str] = ()  # messages about other files of their folder

    @property
    def version(self) -> str:
        """A digest of the modification times of the files."""
        return times_of(self.files)

    @property
    def notes(self) -> Sequence[str]:
        """Messages about files that are not converted."""
        return self.left_out

    def __len__(self) -> int:
        return len(self.line)

    @cached_property
    def _names(self) -> dict[str, str]:
        """The names of columns, by the names of fields."""
        return column_names([name for name, _ in self.kinds])

    @cached_property
    def columns(self) -> Sequence[Column]:
        """One for each field; an object may lack some."""
        return [Column(name=self._names[name], kind=kind) for name, kind in self.kinds]

    def size(self, number: int) -> int:
        """Return the bytes of a line."""
        return int(self.length[number])

    def name(self, number: int) -> str:
        """Return the file and the line."""
        return f"{self.files[self.file[number]].name}, line {self.line[number]}"

    def sample(self, number: int) -> Sample:
        """Read an object."""
        try:
            with self.files[self.file[number]].open("rb") as file:
                data = os.pread(file.fileno(), int(self.length[number]), int(self.offset[number]))
            found = msgspec.json.decode(data, type=dict[str, Any])
            values = zip(self.kinds, self.columns, strict=True)
            return {column.name: _value(found.get(name), column) for (name, _), column in values}
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadSample(f"{self.name(number)}: {json_fault(data, error)}") from error
        except (OSError, ValueError) as error:
            raise BadSample(f"{self.name(number)}: {error}") from error


def _value(value: Any, column: Column) -> Value:
    if value is None:
        return None
    if column.is_number:
        return number_of(value, column)
    return text_of(value) if column.kind == "text" else json_of(value)


def json_fault(data: bytes, error: Exception) -> str:
    """Return the reason why bytes cannot be decoded as JSON; msgspec calls half of a surrogate pair truncated data.

    Args:
        data: The bytes.
        error: The error of msgspec.
    """
    try:
        found = json.loads(data)
        if has_nan(found):
            return "it has NaN or Infinity, which JSON does not have; write null or text"
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as found:
        return f"it has {found.object[found.start]!r}, half of a surrogate pair, which is no character; write another"
    except (ValueError, RecursionError):
        pass
    return str(error)


def json_lines(paths: Sequence[Path]) -> JsonLines:
    """Return the objects of files, and the kind of each field: numbers, text, or JSON for values of several kinds.

    Raises:
        UsageError: A file cannot be read, or there are no objects.
    """
    places: list[tuple[int, int, int, int]] = []
    kinds: dict[str, set[ColumnKind]] = {}
    for number, path in enumerate(paths):
        try:
            with path.open("rb") as file:
                offset = 0
                for count, line in enumerate(file, 1):
                    mark = len(BOM_UTF8) * (count == 1 and line.startswith(BOM_UTF8))
                    if line[mark:].strip():
                        places.append((number, count, offset + mark, len(line) - mark))
                        _collect(line[mark:], kinds)
                    offset += len(line)
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    if not kinds:
        raise UsageError(_no_objects_message(paths))
    file_, line_, offset_, length = np.array(places, np.int64).T
    return JsonLines(
        list(paths), file_, line_, offset_, length, [(name, _kind(found)) for name, found in kinds.items()]
    )


def _no_objects_message(paths: Sequence[Path]) -> str:
    """Return the error message for files in which no object was found: what is wrong with their first line."""
    for path in paths:
        with path.open("rb") as file:
            first = next((line for line in file if line.strip()), b"")
        if first.startswith(_GZIP):
            return f"{path} is compressed with gzip; unpack it first (gunzip)"
        try:
            msgspec.json.decode(first.removeprefix(BOM_UTF8), type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if first.strip():
                said = json_fault(first.removeprefix(BOM_UTF8), error)
                return f"no objects in {path}, whose first line is no JSON object: {said}"
    return f"no objects in {', '.join(map(str, paths[:3]))}; each line must be a JSON object with fields"


def _collect(line: bytes, kinds: dict[str, set[ColumnKind]]) -> None:
    """Add the kinds of the fields of an object. A line that is no object is an error only when it is read."""
    try:
        found = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    for name, value in found.items():
        own = kinds.setdefault(name, set())
        if value is not None:
            own.add(_KINDS.get(type(value), "json"))


def _kind(found: set[ColumnKind]) -> ColumnKind:
    if len(found) == 1:
        return next(iter(found))
    return "float" if found == _BOTH else "json"
