"""Conversion source: arrays whose first axis is samples, in NumPy files, an HDF5 file, or a Zarr store."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.data.format.column_kinds import (
    array_of,
    column_names,
    json_of,
    kind_of_suffix,
    number_of,
    suffix_of_bytes,
    text_of,
)
from paceline.data.format.index import UNREADABLE
from paceline.data.format.model import Column, ColumnKind, Payload, Sample, Value
from paceline.data.sources import BadSample
from paceline.data.sources.files import files_below, left_out_notes, listed, times_of
from paceline.data.sources.zarr_arrays import of_zarr

_LABELS = ("label", "labels", "target", "targets", "y")
_SAMPLES = 8  # files with alike names, from which on they are taken for samples
_PROBED = 16  # rows that are tried
_CHUNK_BYTES = 64 << 20  # of chunks in memory, for each array
HDF5 = (".h5", ".hdf5", ".hdf")
KIND_ATTRIBUTE = "paceline_kind"  # the attribute of HDF5 data sets that `paceline data export` writes
CLASSES_ATTRIBUTE = "classes"  # the attribute of an HDF5 file that holds the class names
Form = Literal["npy", "hdf5", "zarr"]


@dataclass(frozen=True)
class Arrays:
    """Arrays with one row for each sample; each array becomes a column."""

    path: Path  # a folder of .npy files, one of them, an HDF5 file, or the folder of a Zarr store
    form: Form = "npy"

    @property
    def version(self) -> str:
        """A digest of the modification times of the files."""
        return times_of([self.path / file for file in files_below(self.path)] if self.path.is_dir() else [self.path])

    @property
    def reads_groups(self) -> bool:
        """Whether rows are read in groups, because HDF5 and Zarr read whole chunks."""
        return self.form != "npy"

    def __reduce__(self) -> tuple[type[Arrays], tuple[Path, Form]]:
        return type(self), (self.path, self.form)  # each process opens the files itself

    @cached_property
    def _all(self) -> Mapping[str, Any]:
        return _OPENED[self.form](self.path)

    @property
    def notes(self) -> Sequence[str]:
        """Messages about what is not converted, such as single values and other files."""
        single = [name for name, array in self._all.items() if not array.ndim]
        notes = [f"single values of {self.path} are not converted: {', '.join(single)}"] if single else []
        for name, array in self._all.items():
            if missing := getattr(array, "missing_chunks", 0):
                notes.append(
                    f"array {name} of {self.path} lacks {missing:,} chunks, which Zarr reads as its fill value; "
                    "if they were stored, copy the store again"
                )
        if self.form != "npy" or not self.path.is_dir():
            return notes
        others = [Path(file) for file in files_below(self.path) if not file.lower().endswith(".npy") or "/" in file]
        kinds = Counter(one.suffix.lower() or "without suffix" for one in others if not one.name.startswith("."))
        return [*notes, *left_out_notes(self.path, kinds)]

    @property
    def classes(self) -> Sequence[str]:
        """The names of the labels in an HDF5 file that `paceline data export` wrote; else empty."""
        exported = next((array for array in self._all.values() if _written_kind(array) is not None), None)
        if self.form != "hdf5" or exported is None:
            return ()
        return [str(name) for name in exported.file.attrs.get(CLASSES_ATTRIBUTE, ())]

    @cached_property
    def _arrays(self) -> Mapping[str, Any]:
        own = {name: array for name, array in self._all.items() if array.ndim}
        if not own:
            raise UsageError(f"{self.path} holds single numbers only; an array of samples is needed")
        names = column_names(list(own), lambda name: "label" if name.lower() in _LABELS else name)
        found = {names[name]: array for name, array in own.items()}
        counts = {name: len(array) for name, array in found.items()}
        if len(set(counts.values())) != 1:
            said = ", ".join(f"{name} {count:,}" for name, count in counts.items())
            raise UsageError(f"{self.path} has arrays of different lengths ({said}); all must have one row per sample")
        return found

    @property
    def group_starts(self) -> np.ndarray | None:
        """The first row of each chunk if chunks are read as a whole, else None."""
        together = max(
            (array.chunks[0] for array in self._arrays.values() if getattr(array, "chunks", None)), default=1
        )
        return np.arange(0, len(self), together) if together > 1 else None

    def __len__(self) -> int:
        return len(next(iter(self._arrays.values())))

    @cached_property
    def columns(self) -> Sequence[Column]:
        """The columns, one for each array."""
        return [Column(name=name, kind=_written_kind(array) or _kind(array)) for name, array in self._arrays.items()]

    @cached_property
    def _row_bytes(self) -> int:
        for number in _some_rows(len(self)):
            with suppress(BadSample):  # the conversion reports bad samples
                return sum(len(one.data) if isinstance(one, Payload) else 8 for one in self.sample(number).values())
        return 1

    def size(self, number: int) -> int:
        """Return the number of bytes of the first row that can be read, as an estimate for all rows."""
        return self._row_bytes

    def name(self, number: int) -> str:
        """Return the file name and the row, for messages."""
        return f"{self.path.name}[{number}]"

    def sample(self, number: int) -> Sample:
        """Read a row of each array.

        Raises:
            BadSample: A row cannot be read, or cannot be stored.
        """
        try:
            return {column.name: _value(self._arrays[column.name][number], column) for column in self.columns}
        except (OSError, ValueError, TypeError) as error:
            raise BadSample(f"{self.name(number)} cannot be read: {error}") from error


def _of_numpy(path: Path) -> dict[str, Any]:
    files = [path / name for name in listed(path)[0] if name.lower().endswith(".npy")] if path.is_dir() else [path]
    if not files:
        raise UsageError(f"no .npy files in {path}")
    if path.is_dir():
        _check_columns(path, files)
    try:
        if path.suffix.lower() == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        found = {file.stem: np.load(file, mmap_mode="r", allow_pickle=False) for file in files}
    except UNREADABLE as error:
        raise UsageError(f"{path} cannot be read as NumPy arrays: {error}") from error
    return found


def _check_columns(folder: Path, files: Sequence[Path]) -> None:
    """Check that each file can be a column, because a folder with one file for each sample looks alike.

    Raises:
        UsageError: The names of several files differ in their numbers only.
    """
    alike = Counter(re.sub(r"\d+", "#", file.stem) for file in files)
    name, count = alike.most_common(1)[0]
    if count >= _SAMPLES or count == len(files) > 2:
        raise UsageError(
            f"{folder} has {count:,} .npy files whose names differ in their numbers only ({name}), like one file for "
            "each sample; each .npy file must be a column with one row for each sample. Stack them into one file "
            "(numpy.stack), rename them, or give a Dataset that loads them (--dataset)"
        )


def _of_hdf5(path: Path) -> dict[str, Any]:
    try:
        import h5py
    except ImportError as error:
        raise EnvironmentFault("HDF5 files need h5py: pip install 'paceline[formats]'") from error
    found: dict[str, Any] = {}
    try:
        file = h5py.File(path, "r", rdcc_nbytes=_CHUNK_BYTES)
        _collect(file, "", found, ())
    except OSError as error:
        raise UsageError(f"{path} cannot be read as HDF5: {error}") from error
    if not found:
        raise UsageError(f"{path} has no data sets")
    return found


def _collect(group: Any, before: str, found: dict[str, Any], above: tuple[Any, ...]) -> None:
    """Add all HDF5 data sets in a group, also through links, to `found`.

    Raises:
        UsageError: A link leads to nothing, or to a group that contains the link.
    """
    import h5py

    for name in group:
        try:
            one = group[name]
        except (KeyError, OSError) as error:
            raise UsageError(f"{group.file.filename}: {before}{name} is a link to nothing ({error})") from error
        if isinstance(one, h5py.Dataset):
            if one.is_virtual:
                _check_parts(Path(group.file.filename), f"{before}{name}", one)
            found[f"{before}{name}"] = one
        elif isinstance(one, h5py.Group):
            if one == group or one in above:
                raise UsageError(f"{group.file.filename}: {before}{name} is a link to a group that it lies in")
            _collect(one, f"{before}{name}/", found, (*above, group))


def _written_kind(array: Any) -> ColumnKind | None:
    """Return the column kind that `paceline data export` stored with an array, or None for other arrays."""
    told = getattr(array, "attrs", {}).get(KIND_ATTRIBUTE)
    return cast(ColumnKind, told) if told in get_args(ColumnKind) else None


def _check_parts(path: Path, name: str, virtual: Any) -> None:
    """Check that the source files of a virtual HDF5 data set exist, as HDF5 reads missing values as 0.

    Raises:
        UsageError: A file is missing, or lacks the data set.
    """
    import h5py

    for part in virtual.virtual_sources():
        if "%b" in part.file_name:  # a pattern of names, which any number of files may match
            continue
        there = path if part.file_name == "." else path.parent / part.file_name
        try:
            with h5py.File(there, "r") as file:
                is_there = part.dset_name in file
        except OSError:
            is_there = False
        if not is_there:
            raise UsageError(
                f"{path}: {name} takes values from {part.dset_name} in {there}, which is not there; copy it"
            )


def _kind(array: Any) -> ColumnKind:
    if array.ndim == 1 and array.dtype.kind in "biuf" and array.dtype.itemsize <= 8:  # longer floats become arrays
        return "float" if array.dtype.kind == "f" else "int"
    is_text = array.dtype.kind == "T" or (array.dtype.metadata or {}).get("vlen") is str  # of NumPy 2, or of h5py
    if is_text:
        return "text" if array.ndim == 1 else "json"
    if array.dtype.hasobject or array.dtype.kind in "SU":
        first = _first_row(array)
        if isinstance(first, str):
            return "text"
        if isinstance(first, np.ndarray) and first.dtype.kind in "OT":  # stored only if all of the objects are text
            return "json"
        data = _bytes(first)
        return "array" if data is None else kind_of_suffix(suffix_of_bytes(data))
    return "array"


def _some_rows(count: int) -> list[int]:
    """Return the numbers of some rows, evenly spread over all, because neighbours can lie in one damaged chunk."""
    found: list[int] = np.linspace(0, max(0, count - 1), min(_PROBED, count)).astype(int).tolist()
    return found


def _first_row(array: Any) -> Any:
    """Return the first row of an array, or another one if it cannot be read."""
    for number in _some_rows(len(array)):
        with suppress(OSError, ValueError):
            return array[number]
    return array[0]


def _bytes(value: Any) -> bytes | None:
    """Return a value of variable length as bytes, or None if it is a list of numbers other than uint8."""
    if isinstance(value, bytes | np.bytes_):
        return bytes(value)
    return value.tobytes() if isinstance(value, np.ndarray) and value.dtype == np.uint8 else None


def _value(value: Any, column: Column) -> Value:
    if column.is_number:
        return number_of(value, column)
    if column.kind == "text":
        return text_of(value.decode() if isinstance(value, bytes) else value)
    data = _bytes(value)
    if column.kind == "json":
        return Payload(data=data, suffix="json") if data is not None else json_of(_texts(value))
    if column.kind in ("image", "bytes") and data is not None:
        return Payload(data=data, suffix=suffix_of_bytes(data))
    return array_of(value)


def _texts(value: Any) -> Any:
    """Return an array of texts as (nested) lists.

    Raises:
        ValueError: A value is not text.
    """
    if isinstance(value, np.ndarray):
        return [_texts(inner) for inner in value]
    text = value.decode() if isinstance(value, bytes) else value
    if not isinstance(text, str):
        raise ValueError(f"it has {type(text).__name__} in an array of Python objects; supported are numbers and text")
    return text


_OPENED: Mapping[Form, Callable[[Path], Mapping[str, Any]]] = {"npy": _of_numpy, "hdf5": _of_hdf5, "zarr": of_zarr}
