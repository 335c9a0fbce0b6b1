"""Conversion source: TFRecord files of `Example`s. Each feature becomes a column; bytes of an image become an image.

A feature does not tell whether bytes are text, JSON or an array. The file `columns.json`, which `paceline data export`
writes beside the records, gives the kinds of the columns. Without this file, the kinds are derived from the first
records.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from paceline.core.errors import UsageError
from paceline.data.format.column_kinds import array_of, column_names, kind_of_suffix, number_of, suffix_of_bytes
from paceline.data.format.model import Column, ColumnKind, Payload, Sample, Value
from paceline.data.format.tfrecord import Feature, NotATFRecord, decoded, fast_crc32c, places, unframed
from paceline.data.sources import BadSample
from paceline.data.sources.exported_columns import COLUMNS_FILE, exported_columns
from paceline.data.sources.files import times_of

_CHECKSUM_BYTES = 4  # behind the data of a record
_UNCHECKED = "the data of records are not compared with their checksums; for this, pip install 'paceline[formats]'"
_SUFFIXES: Mapping[ColumnKind, str] = {"text": "txt", "json": "json", "array": "npy", "bytes": "bin"}
_PROBED = 64  # records that determine the columns
_NAMES = {"image/encoded": "image", "image_raw": "image", "image/class/label": "label"}  # TensorFlow's names


@dataclass(frozen=True)
class Records:
    """The records of TFRecord files, as samples."""

    files: Sequence[Path]
    file: np.ndarray  # for each record the index of its file
    offset: np.ndarray
    length: np.ndarray
    classes: Sequence[str] = ()
    left_out: Sequence[str] = ()  # messages about other files of their folder
    told: Mapping[str, ColumnKind] = field(default_factory=dict)  # kinds of columns, from `columns.json`

    @property
    def version(self) -> str:
        """A digest of the modification times of the files."""
        return times_of(self.files)

    @property
    def notes(self) -> Sequence[str]:
        """Messages about what is not converted or not checked."""
        return [*self.left_out, *([] if fast_crc32c() else [_UNCHECKED])]

    def __len__(self) -> int:
        return len(self.offset)

    @cached_property
    def columns(self) -> Sequence[Column]:
        """The columns of the first records; a record can lack values."""
        kinds: dict[str, ColumnKind] = {
            key: "array" if key in self._lists else self._kind_of(f"{self.files[0].name}, {key}", values)
            for key, values in self._known.items()
            if key not in self.told
        }
        kinds = {key: "bytes" if key in self._mixed else kind for key, kind in kinds.items()} | dict(self.told)
        return [Column(name=name, kind=kinds[key]) for key, name in self._names.items()]

    @cached_property
    def _mixed(self) -> set[str]:
        """The names of features whose bytes have several kinds in the first records, such as text and other bytes."""
        kinds: dict[str, set[ColumnKind]] = {}
        for number in range(min(_PROBED, len(self))):
            with suppress(BadSample):
                for key, values in self._features(number).items():
                    if values and values[0] and isinstance(values[0], bytes):
                        kinds.setdefault(key, set()).add(_kind(values))
        return {key for key, found in kinds.items() if len(found) > 1}

    @cached_property
    def _lists(self) -> set[str]:
        """The names of number features that have none or several values in any of the first records."""
        found = set()
        for number in range(min(_PROBED, len(self))):
            with suppress(BadSample):
                found |= {key for key, values in self._features(number).items() if len(values) != 1}
        return {key for key in found if isinstance(self._known[key], array)}

    @cached_property
    def _known(self) -> dict[str, Feature]:
        """The features of the first records, each with its first non-empty value of a supported kind.

        Raises:
            BadSample: None of these records can be read.
        """
        found: dict[str, Feature] = {}
        for number in range(min(_PROBED, len(self))):
            try:
                features = self._features(number)
            except BadSample:
                if number + 1 == min(_PROBED, len(self)) and not found:
                    raise
                continue
            found = features | {
                key: values for key, values in found.items() if _is_usual(values) or key not in features
            }
        return found

    @cached_property
    def _names(self) -> dict[str, str]:
        """The name of the column for each feature."""
        found = list(dict.fromkeys([*self.told, *self._known]))
        return column_names(found, lambda key: key if key in self.told else _NAMES.get(key, key))

    def size(self, number: int) -> int:
        """Return the number of bytes of a record."""
        return int(self.length[number])

    def name(self, number: int) -> str:
        """Return the file name and the byte offset of a record, for messages."""
        return f"{self.files[self.file[number]].name}, record at byte {self.offset[number]}"

    def sample(self, number: int) -> Sample:
        """Read a record.

        Raises:
            BadSample: The record is damaged or does not fit the columns.
        """
        features = self._features(number)
        found = {column: features[key] for key, column in self._names.items() if key in features}
        more = [key for key in features if key not in self._names and key not in self.told]
        if more:
            raise BadSample(f"{self.name(number)} has {', '.join(more)}, which none of the first {_PROBED} records has")
        return {column.name: self._value(number, column, found.get(column.name)) for column in self.columns}

    def _features(self, number: int) -> dict[str, Feature]:
        path = self.files[self.file[number]]
        try:
            with path.open("rb") as file:
                data = os.pread(file.fileno(), int(self.length[number]) + _CHECKSUM_BYTES, int(self.offset[number]))
            return decoded(unframed(data))
        except (OSError, NotATFRecord) as error:
            raise BadSample(f"{self.name(number)}: {error}") from error

    def _value(self, number: int, column: Column, values: Feature | None) -> Value:
        if values is None:
            return None
        if column.name in self.told:
            return self._exported(number, column, values)
        listed = column.kind == "array" and not (values and isinstance(values[0], bytes))
        if listed:  # any number of values
            known = next((self._known[key] for key, name in self._names.items() if name == column.name), values)
            typed = values if values or not isinstance(known, array) else known
            return array_of(np.array(values, np.int64 if getattr(typed, "typecode", "f") == "q" else np.float32))
        kind = self._kind_of(f"{self.name(number)}: {column.name}", values)
        if kind != column.kind and not (column.kind == "bytes" and values and isinstance(values[0], bytes)):
            raise BadSample(f"{self.name(number)}: {column.name} is {kind}; in the first record it is {column.kind}")
        first = values[0] if values else b""
        if isinstance(first, bytes):
            suffix = _SUFFIXES[column.kind] if column.kind in ("text", "bytes") else suffix_of_bytes(first)
            return Payload(data=first, suffix=suffix)
        return number_of(first, column)

    @staticmethod
    def _kind_of(name: str, values: Feature) -> ColumnKind:
        try:
            return _kind(values)
        except BadSample as error:
            raise BadSample(f"{name}: {error}") from error

    def _exported(self, number: int, column: Column, values: Feature) -> Value:
        if len(values) != 1 or isinstance(values[0], bytes) == column.is_number:
            raise BadSample(f"{self.name(number)}: {column.name} is not of kind {column.kind}, as {COLUMNS_FILE} says")
        (value,) = values
        if isinstance(value, bytes):
            return Payload(data=value, suffix=_SUFFIXES.get(column.kind) or suffix_of_bytes(value))
        return number_of(value, column)


def tfrecords(paths: Sequence[Path]) -> Records:
    """Find the records of files.

    Args:
        paths: The paths of the files.

    Raises:
        UsageError: A file is no TFRecord file or is damaged, or there are no records.
    """
    found: list[tuple[int, int, int]] = []
    for number, path in enumerate(paths):
        try:
            with path.open("rb") as file:
                found += [(number, offset, length) for offset, length in places(file)]
        except (OSError, NotATFRecord) as error:
            raise UsageError(f"{path} cannot be read as TFRecord: {error}") from error
    if not found:
        raise UsageError(f"no records in {', '.join(map(str, paths[:3]))}")
    file_, offset, length = np.array(found, np.int64).T
    exported = exported_columns(paths[0].parent)
    return Records(list(paths), file_, offset, length, classes=exported.classes, told=exported.columns)


def _is_usual(values: Feature) -> bool:
    """Return whether a feature has values, and is not a list of byte strings, which is not supported."""
    return len(values) == 1 or (len(values) > 1 and not isinstance(values[0], bytes))


def _kind(values: Feature) -> ColumnKind:
    if isinstance(values, array) and len(values) != 1:
        return "array"
    first = values[0] if values else b""
    if isinstance(first, bytes) and len(values) <= 1:
        suffix = suffix_of_bytes(first)
        return _text_or_bytes(first) if suffix == "bin" else kind_of_suffix(suffix)
    if isinstance(first, bytes):
        raise BadSample(
            f"a feature is a list of {len(values)} byte strings; supported are lists of numbers, and single strings"
        )
    return "float" if isinstance(first, float) else "int"


def _text_or_bytes(data: bytes) -> ColumnKind:
    try:
        data.decode()
    except UnicodeDecodeError:
        return "bytes"
    return "text"
