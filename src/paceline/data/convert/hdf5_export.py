"""Export of shards as HDF5: an HDF5 data set for each column, with the kind of the column in an attribute.

Numbers, and arrays of equal shape, are stored directly. Lists of numbers of different lengths become rows of variable
length, text becomes text, and other values become bytes of variable length.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.core.files import replacing
from paceline.data.format.model import Column
from paceline.data.reading.sharded import SamplePlace, ShardedDataset, missing_of
from paceline.data.sources.arrays import CLASSES_ATTRIBUTE, KIND_ATTRIBUTE

Progress = Callable[[int, int], None]
Row = Mapping[str, bytes | int | float]


class ArrayLayout(NamedTuple):
    """The common type and shape of the arrays of a column."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None  # None for arrays with one axis and different lengths


def write_hdf5(dataset: ShardedDataset, dest: Path, progress: Progress) -> Path:
    """Write a dataset as an HDF5 file.

    Args:
        dataset: The dataset.
        dest: The path of the file.
        progress: Is called with the number of written samples and of all samples.

    Returns:
        The path of the file.

    Raises:
        UsageError: HDF5 cannot store a column; the message names it.
        EnvironmentFault: h5py is not installed, or the file cannot be written.
    """
    try:
        import h5py
    except ImportError as error:
        raise EnvironmentFault("HDF5 files need h5py: pip install 'paceline[formats]'") from error
    columns = dataset.contents.columns
    gaps = [c.name for c in columns if c.optional and c.kind != "float"]
    if gaps:
        raise UsageError(
            f"samples have no {', '.join(gaps)}, and HDF5 cannot store missing values; use webdataset or tfrecord"
        )
    layouts = {c.name: array_layout(dataset, c, h5py) for c in columns if c.kind == "array"}
    dest.parent.mkdir(parents=True, exist_ok=True)
    try:
        _write(dataset, dest, layouts, progress, h5py)
    except RuntimeError as error:  # h5py raises it if the file cannot be finished
        raise _full(dest, error) from error
    except OSError as error:
        if error.errno is not None and error.strerror:
            raise
        raise _full(dest, error) from error
    return dest


def _full(dest: Path, error: Exception) -> EnvironmentFault:
    """Return the error that a file cannot be written, with the system's reason in the message of HDF5."""
    reason = re.search("error message = '([^']*)'", str(error))
    said = reason[1] if reason else str(error)
    return EnvironmentFault(f"cannot write {dest}: {said}; free some space, or name another place")


def _write(
    dataset: ShardedDataset, dest: Path, layouts: Mapping[str, ArrayLayout], progress: Progress, h5py: Any
) -> None:
    columns = dataset.contents.columns
    with replacing(dest) as made, h5py.File(made, "w") as file:
        own = {c.name: _created(file, c, len(dataset), layouts.get(c.name), h5py) for c in columns}
        done = 0
        for shard in range(len(dataset.contents.shards)):
            for row_of, row in enumerate(rows_of(dataset, shard)):
                for column in columns:
                    if column.name in row:
                        own[column.name][done] = _stored(dataset, SamplePlace(shard, row_of), column, row[column.name])
                done += 1
                progress(done, len(dataset))
        if dataset.contents.classes:
            file.attrs[CLASSES_ATTRIBUTE] = list(dataset.contents.classes)


def rows_of(dataset: ShardedDataset, shard: int) -> Iterator[Row]:
    """Yield the samples of a shard as dicts of numbers and bytes by column, without missing values."""
    places = [SamplePlace(shard, row) for row in range(dataset.contents.shards[shard].samples)]
    columns = dataset.contents.columns
    numbers = {c.name: dataset.numbers(c.name, places).tolist() for c in columns if c.is_number}
    for row, place in enumerate(places):
        there = [column for column in columns if not missing_of(dataset, column, [place])[0]]
        yield {c.name: numbers[c.name][row] if c.is_number else dataset.payload(c.name, place) for c in there}


def array_layout(dataset: ShardedDataset, column: Column, h5py: Any) -> ArrayLayout:
    """Return the common type and shape of the arrays of a column.

    Raises:
        UsageError: HDF5 has no such type, or the arrays have several types or shapes.
    """
    dtypes, shapes = dict[str, np.dtype[Any]](), dict[tuple[int, ...], None]()
    for shard in range(len(dataset.contents.shards)):
        for row in range(dataset.contents.shards[shard].samples):
            array = _array(dataset.payload(column.name, SamplePlace(shard, row)))
            dtypes[str(array.dtype)] = array.dtype
            shapes[array.shape] = None
    use = "use webdataset or tfrecord"
    if len(dtypes) > 1:
        raise UsageError(f"column {column.name} has arrays of types {', '.join(dtypes)}, and HDF5 stores one; {use}")
    (dtype,) = dtypes.values()
    try:
        h5py.h5t.py_create(dtype, logical=True)
    except TypeError as error:
        raise UsageError(f"column {column.name} has arrays of {dtype}, which HDF5 cannot store; {use}") from error
    if len(shapes) == 1:
        return ArrayLayout(dtype, next(iter(shapes)))
    if any(len(shape) != 1 for shape in shapes):
        some = ", ".join(map(str, list(shapes)[:3]))
        raise UsageError(
            f"column {column.name} has arrays of different shapes ({some}), and HDF5 stores different lengths only of "
            f"arrays with one axis; {use}"
        )
    return ArrayLayout(dtype, None)


def _created(file: Any, column: Column, samples: int, layout: ArrayLayout | None, h5py: Any) -> Any:
    """Create the HDF5 data set of a column."""
    if layout is not None and layout.shape is not None:
        made = file.create_dataset(column.name, (samples, *layout.shape), layout.dtype)
    elif layout is not None:
        made = file.create_dataset(column.name, samples, h5py.vlen_dtype(layout.dtype))
    else:
        fill = np.nan if column.kind == "float" else None
        made = file.create_dataset(column.name, samples, _dtype(column, h5py), fillvalue=fill)
    made.attrs[KIND_ATTRIBUTE] = column.kind
    return made


def _stored(dataset: ShardedDataset, place: SamplePlace, column: Column, value: bytes | int | float) -> Any:
    """Return a value in the form that h5py writes."""
    if not isinstance(value, bytes):
        return value
    if column.kind == "array":
        return _array(value)
    if column.kind != "text":
        return np.frombuffer(value, np.uint8)
    if b"\0" in value:
        raise UsageError(
            f"{dataset.name(place)}: {column.name} has a zero byte, which HDF5 ends a text at; use tfrecord"
        )
    return value.decode()


def _array(data: bytes) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = np.load(io.BytesIO(data), allow_pickle=False)
    return array


def _dtype(column: Column, h5py: Any) -> Any:
    if column.is_number:
        return np.int64 if column.kind == "int" else np.float64
    if column.kind == "text":
        return h5py.string_dtype()
    return h5py.vlen_dtype(np.uint8)
