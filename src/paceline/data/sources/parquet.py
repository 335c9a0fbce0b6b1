"""Conversion source: Parquet and Arrow files with columns of numbers, text, bytes, lists, and embedded images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.data.format.column_kinds import column_names, kind_of_suffix, suffix_of_bytes
from paceline.data.format.model import Column, ColumnKind, Sample
from paceline.data.sources import BadSample
from paceline.data.sources.arrow_values import (
    bytes_in,
    has_path,
    is_bytes,
    is_ragged,
    kept_value,
    kind_of_type,
    may_be_ragged,
    merged_schema,
    python_value,
    without_nanoseconds,
)
from paceline.data.sources.files import times_of

_KEPT_GROUPS = 8  # row groups in memory
_END = b"\xff\xff\xff\xff\0\0\0\0"  # the end mark of an Arrow stream


@dataclass(frozen=True)
class Tables:
    """The rows of Parquet or Arrow files, as samples."""

    files: Sequence[Path]
    arrow: bool = False  # whether the files are Arrow (Feather), not Parquet
    left_out: Sequence[str] = ()  # messages about other files of their folder
    reads_groups = True  # a row is read with its whole row group

    def __reduce__(self) -> tuple[type[Tables], tuple[Sequence[Path], bool]]:
        return type(self), (self.files, self.arrow)

    @property
    def version(self) -> str:
        """A digest of the modification times of the files."""
        return times_of(self.files)

    @property
    def notes(self) -> Sequence[str]:
        """Messages about what is not converted, and about files without an end mark."""
        paths = [field.name for field in self._schema if has_path(field.type)]
        named = [name for name, names in self._class_names.items() if name != "label" and names]
        notes = [f"the paths beside the bytes of column {name} are not converted" for name in paths]
        cut = [file for file, one in zip(self.files, self._opened, strict=True) if not one.has_end]
        notes += [f"{file} has no mark at its end; if it was cut off, rows are missing" for file in cut]
        notes += [
            f"the index {name} of pandas is not converted; use df.reset_index() to keep it" for name in self._indices
        ]
        return [*self.left_out, *notes, *(f"the class names of column {name} are not converted" for name in named)]

    @property
    def _indices(self) -> Sequence[str]:
        """The names of pandas indices that have no column, because pandas stored only their first value and step."""
        found: set[str] = set()
        for one in self._opened:
            with suppress(msgspec.DecodeError, KeyError, TypeError):
                columns = msgspec.json.decode((one.schema.metadata or {})[b"pandas"])["index_columns"]
                found |= {each["name"] for each in columns if isinstance(each, Mapping) and each.get("name")}
        return sorted(found)

    @cached_property
    def _opened(self) -> list[Any]:
        try:
            import pyarrow
        except ImportError as error:
            raise EnvironmentFault("Parquet and Arrow files need pyarrow: pip install 'paceline[formats]'") from error
        try:
            return [_ArrowFile(path) if self.arrow else _ParquetFile(path) for path in self.files]
        except (OSError, pyarrow.ArrowException) as error:
            named = "Arrow" if self.arrow else "Parquet"
            raise UsageError(f"{', '.join(map(str, self.files[:3]))} cannot be read as {named}: {error}") from error

    @cached_property
    def _schema(self) -> Any:
        return merged_schema([one.schema for one in self._opened], self.files)

    @cached_property
    def _groups(self) -> tuple[list[tuple[int, int]], np.ndarray]:
        """The index of the file and the index in the file of each row group, and the number of its first row."""
        found, sizes = [], []
        for number, file in enumerate(self._opened):
            found += [(number, group) for group in range(len(file.rows))]
            sizes += file.rows
        return found, np.append(0, np.cumsum(sizes)).astype(np.int64)

    @property
    def group_starts(self) -> np.ndarray | None:
        """The first row of each row group if row groups are read as a whole, else None."""
        return None if self.arrow else np.unique(self._groups[1][:-1])

    @cached_property
    def _read(self) -> Callable[[tuple[int, int]], Any]:
        return lru_cache(_KEPT_GROUPS)(lambda group: self._opened[group[0]].read(group[1]))

    def __len__(self) -> int:
        return int(self._groups[1][-1])

    @property
    def classes(self) -> Sequence[str]:
        """The names of the labels, if Hugging Face's datasets stored them in the files; else empty."""
        return self._class_names.get("label", ())

    @cached_property
    def _class_names(self) -> Mapping[str, Sequence[str]]:
        noted = (self._opened[0].schema.metadata or {}).get(b"huggingface", b"{}")
        try:
            features = msgspec.json.decode(noted)["info"]["features"]
            found = {name: _names_in(one) for name, one in features.items()}
        except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
            return {}
        return {name: [str(one) for one in names] for name, names in found.items() if isinstance(names, list)}

    @cached_property
    def _names(self) -> dict[str, str]:
        """The name of the column for each name in the files."""
        return column_names(self._schema.names)

    @cached_property
    def columns(self) -> Sequence[Column]:
        """The columns, from the schemas; the kind of a bytes column is derived from its first value."""
        return [Column(name=self._names[field.name], kind=self._kind(field)) for field in self._schema]

    def _kind(self, field: Any) -> ColumnKind:
        if may_be_ragged(field.type) and any(map(is_ragged, self._parts(field.name))):
            return "json"
        if not is_bytes(field.type):
            return kind_of_type(field.type)
        for group in self._groups[0]:
            if field.name in self._opened[group[0]].schema.names:
                there = next((each for each in self._column(group, field.name) if each.is_valid), None)
                first = bytes_in(there.as_py()) if there is not None else None
                return kind_of_suffix(suffix_of_bytes(first or b""))
        return "bytes"

    def _parts(self, name: str) -> Iterator[Any]:
        """Yield a column of each row group that can be read, without reading the other columns."""
        for number, group in self._groups[0]:
            file = self._opened[number]
            if name in file.schema.names:
                with suppress(OSError, ValueError):  # the conversion reports bad samples
                    yield file.column(group, name)

    def _column(self, group: tuple[int, int], name: str) -> Any:
        try:
            return self._read(group).column(name)
        except (OSError, ValueError) as error:  # the base classes of pyarrow's errors
            file, place = group
            raise BadSample(f"{self.files[file].name}, row group {place} cannot be read: {error}") from error

    def size(self, number: int) -> int:
        """Return the mean uncompressed bytes of a row."""
        return self._usual_bytes

    @cached_property
    def _usual_bytes(self) -> int:
        return int(sum(one.bytes for one in self._opened) / max(1, len(self)))

    def name(self, number: int) -> str:
        """Return the file name and the row number, for messages."""
        groups, first = self._groups
        place = int(np.searchsorted(first, number, side="right")) - 1
        return f"{self.files[groups[place][0]].name}, row {number}"

    def sample(self, number: int) -> Sample:
        """Read a row.

        Raises:
            BadSample: The row cannot be read, or a value cannot be stored.
        """
        row, found = self._row(number), {}
        for field, column in zip(self._schema, self.columns, strict=True):
            try:
                found[column.name] = kept_value(row.get(field.name), column, field.type)
            except (ValueError, TypeError) as error:
                raise BadSample(f"{self.name(number)}: {column.name}: {error}") from error
        return found

    def _row(self, number: int) -> dict[str, Any]:
        groups, first = self._groups
        place = int(np.searchsorted(first, number, side="right")) - 1
        try:
            table = self._read(groups[place]).slice(number - int(first[place]), 1)
            try:
                row: dict[str, Any] = table.to_pylist()[0]
            except OverflowError:
                row = {name: python_value(table.column(name)[0]) for name in table.column_names}
        except (OSError, ValueError, OverflowError) as error:  # OSError and ValueError: also those of pyarrow
            raise BadSample(f"{self.name(number)} cannot be read: {error}") from error
        return row


class _ParquetFile:
    """A Parquet file."""

    has_end = True  # a file without an end cannot be opened

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet

        self._own = pyarrow.parquet.ParquetFile(path, page_checksum_verification=True)
        self.schema = self._own.schema_arrow
        groups = [self._own.metadata.row_group(group) for group in range(self._own.num_row_groups)]
        self.rows = [group.num_rows for group in groups]
        self.bytes = sum(group.total_byte_size for group in groups)

    def read(self, group: int) -> Any:
        """Return a group of rows."""
        return _readable(self._own.read_row_group(group))

    def column(self, group: int, name: str) -> Any:
        """Return a column of a group of rows."""
        return self._own.read_row_group(group, columns=[name]).column(name)


class _ArrowFile:
    """An Arrow file: in the file format (Feather), or as a stream, which Hugging Face's datasets writes."""

    def __init__(self, path: Path) -> None:
        import pyarrow
        import pyarrow.ipc

        source = pyarrow.memory_map(str(path))
        try:
            own = pyarrow.ipc.open_file(source)
            batches = [own.get_batch(number) for number in range(own.num_record_batches)]
            self.has_end = True
        except pyarrow.ArrowInvalid:
            source.seek(0)
            own = pyarrow.ipc.open_stream(source)
            batches = list(own)
            source.seek(max(0, source.size() - len(_END)))
            self.has_end = source.read() == _END
        self.schema = own.schema
        self._tables = [pyarrow.Table.from_batches([batch]) for batch in batches]
        self.rows = [batch.num_rows for batch in batches]
        self.bytes = sum(batch.nbytes for batch in batches)

    def read(self, group: int) -> Any:
        """Return a group of rows."""
        return _readable(self._tables[group])

    def column(self, group: int, name: str) -> Any:
        """Return a column of a group of rows."""
        return self._tables[group].column(name)


def _names_in(feature: Any) -> Any:
    """Return the class names of a feature of Hugging Face's datasets, also of the labels in its lists, or None."""
    while isinstance(feature, Mapping) and "names" not in feature and "feature" in feature:
        feature = feature["feature"]
    if isinstance(feature, list):  # older files write a list of labels as a list with one feature
        return _names_in(feature[0]) if feature else None
    return feature.get("names") if isinstance(feature, Mapping) else None


def _readable(table: Any) -> Any:
    """Return a table with nanosecond times as text, because Python's dates have no nanoseconds."""
    for place, field in enumerate(table.schema):
        if (own := without_nanoseconds(field.type)) != field.type:
            column = table.column(place).cast(without_nanoseconds(field.type, only_durations=True))
            table = table.set_column(place, field.name, column.cast(own))
    return table


def tables(paths: Sequence[Path], *, arrow: bool = False) -> Tables:
    """Return the source for the rows of files.

    Args:
        paths: The paths of the files.
        arrow: Whether the files are Arrow (Feather), not Parquet.

    Raises:
        UsageError: A file cannot be read, or there are no rows.
        EnvironmentFault: pyarrow is not installed.
    """
    found = Tables(list(paths), arrow)
    if not len(found):
        raise UsageError(f"no rows in {', '.join(map(str, paths[:3]))}")
    return found
