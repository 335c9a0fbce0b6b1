"""Parquet files: columns of numbers, text and bytes; pictures as bytes, or with their path as Hugging Face has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from paceline.data.kinds import array_of, column_names, kind_of_suffix, number_of, suffix_of_bytes, text_of
from paceline.data.model import Column, ColumnKind, Payload, Sample, Value
from paceline.data.sources import BadSample
from paceline.errors import EnvironmentFault, UsageError

_KEPT_GROUPS = 8  # groups of rows in memory


@dataclass(frozen=True)
class Tables:
    """All rows of some files."""

    files: Sequence[Path]
    version: str = ""
    reads_groups = True  # a row is read with all of its group

    def __reduce__(self) -> tuple[type[Tables], tuple[Sequence[Path]]]:
        return type(self), (self.files,)

    @cached_property
    def _opened(self) -> list[Any]:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise EnvironmentFault("Parquet files need pyarrow: pip install 'paceline[formats]'") from error
        try:
            return [pyarrow.parquet.ParquetFile(path) for path in self.files]
        except (OSError, pyarrow.ArrowException) as error:
            raise UsageError(f"{', '.join(map(str, self.files[:3]))} cannot be read as Parquet: {error}") from error

    @cached_property
    def _groups(self) -> tuple[list[tuple[int, int]], np.ndarray]:
        """Return file and group of each group of rows, and the number of its first row."""
        found, sizes = [], []
        for number, file in enumerate(self._opened):
            for group in range(file.num_row_groups):
                found.append((number, group))
                sizes.append(file.metadata.row_group(group).num_rows)
        return found, np.append(0, np.cumsum(sizes)).astype(np.int64)

    @cached_property
    def _read(self) -> Any:
        return lru_cache(_KEPT_GROUPS)(lambda group: self._opened[group[0]].read_row_group(group[1]))

    def __len__(self) -> int:
        return int(self._groups[1][-1])

    @cached_property
    def classes(self) -> Sequence[str]:
        """Names of the labels, where Hugging Face's datasets has noted them."""
        noted = (self._opened[0].schema_arrow.metadata or {}).get(b"huggingface", b"{}")
        try:
            features = msgspec.json.decode(noted)["info"]["features"]
            return [str(name) for name in features["label"]["names"]]
        except (msgspec.DecodeError, KeyError, TypeError):
            return ()

    @cached_property
    def _names(self) -> dict[str, str]:
        """What columns are called, by their names in the files."""
        return column_names(self._opened[0].schema_arrow.names)

    @cached_property
    def columns(self) -> Sequence[Column]:
        """What the schema says; of bytes, what the first that are there are."""
        return [Column(name=self._names[field.name], kind=self._kind(field)) for field in self._opened[0].schema_arrow]

    def _kind(self, field: Any) -> ColumnKind:
        from pyarrow import types

        own = field.type.value_type if types.is_dictionary(field.type) else field.type
        if types.is_integer(own) or types.is_boolean(own):
            return "int"
        if types.is_floating(own):
            return "float"
        if types.is_list(own) or types.is_large_list(own) or types.is_fixed_size_list(own):
            return "array"
        if not _is_bytes(own):
            return "text"
        groups, _ = self._groups
        there = self._read(groups[0]).column(field.name).drop_null()
        first = _bytes(there[0].as_py()) if len(there) else None
        return kind_of_suffix(suffix_of_bytes(first or b""))

    def size(self, number: int) -> int:
        """Return what a row has on average, uncompressed."""
        return self._usual_bytes

    @cached_property
    def _usual_bytes(self) -> int:
        whole = sum(f.metadata.row_group(g).total_byte_size for f in self._opened for g in range(f.num_row_groups))
        return int(whole / max(1, len(self)))

    def name(self, number: int) -> str:
        """Return the file and the row in it."""
        groups, first = self._groups
        place = int(np.searchsorted(first, number, side="right")) - 1
        return f"{self.files[groups[place][0]].name}, row {number}"

    def sample(self, number: int) -> Sample:
        """Read a row."""
        row = self._row(number)
        found = {column: row.get(name) for name, column in self._names.items()}
        return {column.name: self._value(number, column, found[column.name]) for column in self.columns}

    def _row(self, number: int) -> dict[str, Any]:
        groups, first = self._groups
        place = int(np.searchsorted(first, number, side="right")) - 1
        try:
            table = self._read(groups[place])
        except (OSError, ValueError) as error:  # pyarrow's own are these
            raise BadSample(f"{self.name(number)} cannot be read: {error}") from error
        row: dict[str, Any] = table.slice(number - int(first[place]), 1).to_pylist()[0]
        return row

    def _value(self, number: int, column: Column, value: Any) -> Value:
        if value is None:
            return None
        if column.is_number:
            return number_of(value, column)
        if column.kind == "text":
            return text_of(msgspec.json.encode(value).decode() if isinstance(value, Mapping | list) else value)
        if column.kind == "array":
            return self._array(number, column, value)
        data = _bytes(value)
        if data is None:
            raise BadSample(f"{self.name(number)}: {column.name} holds no bytes")
        return Payload(data=data, suffix=suffix_of_bytes(data))

    def _array(self, number: int, column: Column, value: Any) -> Payload:
        try:
            return array_of(value)
        except ValueError as error:
            raise BadSample(f"{self.name(number)}: {column.name}: {error}") from error


def tables(paths: Sequence[Path]) -> Tables:
    """List the rows of files.

    Raises:
        UsageError: They cannot be read, or there are none.
        EnvironmentFault: pyarrow is not installed.
    """
    found = Tables(list(paths))
    if not len(found):
        raise UsageError(f"no rows in {', '.join(map(str, paths[:3]))}")
    return found


def _is_bytes(own: Any) -> bool:
    """Say whether values are bytes, or have them beside a path."""
    from pyarrow import types

    if types.is_struct(own):
        return any(field.name == "bytes" and _is_bytes(field.type) for field in own)
    return bool(types.is_binary(own) or types.is_large_binary(own) or types.is_fixed_size_binary(own))


def _bytes(value: Any) -> bytes | None:
    if isinstance(value, bytes):
        return value
    inside = value.get("bytes") if isinstance(value, Mapping) else None
    return inside if isinstance(inside, bytes) else None
