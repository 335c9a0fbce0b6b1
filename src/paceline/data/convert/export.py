"""Export of shards as TFRecord, HDF5 (`hdf5_export`), or tars for WebDataset. A crash leaves no partial file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.core.files import replacing
from paceline.data.convert.hdf5_export import Progress, rows_of, write_hdf5
from paceline.data.format.model import Column
from paceline.data.format.tfrecord import encoded, framed
from paceline.data.reading.sharded import SamplePlace, ShardedDataset, missing_of
from paceline.data.sources.exported_columns import CLASSES_FILE, COLUMNS_FILE, ExportedColumns

FORMATS = ("tfrecord", "hdf5", "webdataset")


def export(dataset: ShardedDataset, dest: Path, kind: str, progress: Progress) -> list[Path]:
    """Write a dataset in another format.

    Args:
        dataset: The dataset.
        dest: A new or empty folder; for HDF5 the path of a new file.
        kind: One of `FORMATS`.
        progress: Is called with the number of exported samples and of all samples.

    Returns:
        The paths of the written files.

    Raises:
        UsageError: The destination exists already, or the format cannot store a column.
        EnvironmentFault: The destination cannot be written, or a package is missing.
    """
    if dest.exists() and (dest.is_file() or any(dest.iterdir())):
        raise UsageError(f"{dest} already exists; name a new {'file' if kind == 'hdf5' else 'folder'}")
    try:
        if kind == "hdf5":
            return [write_hdf5(dataset, dest, progress)]
        if kind == "tfrecord":
            _check_floats(dataset)
        if kind == "webdataset":
            _check_files(dataset)
        dest.mkdir(parents=True, exist_ok=True)
        written = _tfrecords(dataset, dest, progress) if kind == "tfrecord" else _tars(dataset, dest, progress)
        return [*written, *_beside(dataset, dest)]
    except OSError as error:
        raise EnvironmentFault(f"cannot write to {dest}: {error.strerror or error}; name another place") from error


def export_notes(dataset: ShardedDataset, kind: str) -> list[str]:
    """Return messages about what a format of `FORMATS` cannot store of a dataset."""
    notes = []
    columns = dataset.contents.columns
    if kind == "tfrecord":
        floats = [(column.name, _shortened(dataset, column)) for column in columns if column.kind == "float"]
        rounded = [
            name
            for name, shards in floats
            if not all(np.array_equal(short.astype(np.float64), values, equal_nan=True) for values, short in shards)
        ]
        notes += [f"TFRecord has floats of 32 bits: values of column {name} are rounded" for name in rounded]
        arrays = [column.name for column in columns if column.kind == "array"]
        notes += [
            f"TFRecord has no arrays: those of column {name} are stored as the bytes of .npy files" for name in arrays
        ]
    if kind == "hdf5":
        nans = [column.name for column in columns if column.optional and column.kind == "float"]
        notes += [f"HDF5 has no mark for missing values: those of column {name} become NaN" for name in nans]
    notes.append(f"the names of samples are not exported, such as {dataset.index(0).names[0]!r}")
    return notes


def _check_floats(dataset: ShardedDataset) -> None:
    """Check that all floats are within the range of 32-bit floats.

    Raises:
        UsageError: A float is too large.
    """
    floats = [column for column in dataset.contents.columns if column.kind == "float"]
    for column in floats:
        for values, short in _shortened(dataset, column):
            large = values[np.isinf(short) & ~np.isinf(values)]
            if len(large):
                raise UsageError(
                    f"column {column.name} has {large[0]}, and floats of TFRecord end at 3.4e38; use hdf5 or webdataset"
                )


def _check_files(dataset: ShardedDataset) -> None:
    """Check that each sample has a value, as a sample of a tar consists of the files of its values.

    Raises:
        UsageError: A sample has no value.
    """
    columns = dataset.contents.columns
    if not all(column.optional for column in columns):
        return
    for shard, one in enumerate(dataset.contents.shards):
        places = [SamplePlace(shard, row) for row in range(one.samples)]
        empty = np.all([missing_of(dataset, column, places) for column in columns], axis=0)
        if empty.any():
            raise UsageError(
                f"{dataset.name(places[int(np.argmax(empty))])} has no value in any column, and a tar of WebDataset "
                "cannot hold a sample without files; use tfrecord"
            )


def _shortened(dataset: ShardedDataset, column: Column) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Yield the numbers of a column for each shard, as 64-bit and as 32-bit floats."""
    for shard in range(len(dataset.contents.shards)):
        values = dataset.index(shard).arrays[f"{column.name}.value"]
        with np.errstate(over="ignore"):
            yield values, values.astype(np.float32)


def _classes(dataset: ShardedDataset, dest: Path) -> list[Path]:
    """Write the names of the classes, one per line, for `--classes-from`."""
    if not dataset.contents.classes:
        return []
    path = dest / CLASSES_FILE
    path.write_text(
        "".join(f"{name}\n" for name in dataset.contents.classes), encoding="utf-8", errors="surrogateescape"
    )
    return [path]


def _tfrecords(dataset: ShardedDataset, dest: Path, progress: Progress) -> list[Path]:
    """Write a TFRecord file for each shard, with names as in TensorFlow."""
    count, done, written = len(dataset.contents.shards), 0, []
    for shard in range(count):
        path = dest / f"data-{shard:05d}-of-{count:05d}.tfrecord"
        with replacing(path) as made, made.open("wb") as file:
            for row in rows_of(dataset, shard):
                file.write(framed(encoded({name: [value] for name, value in row.items()})))  # type: ignore[misc]
                done += 1
                progress(done, len(dataset))
        written.append(path)
    return written


def _tars(dataset: ShardedDataset, dest: Path, progress: Progress) -> list[Path]:
    """Copy the shards, which are tars that WebDataset reads."""
    done, written = 0, []
    for shard in dataset.contents.shards:
        with replacing(dest / shard.file) as made:
            shutil.copyfile(dataset.folder / shard.file, made)
        written.append(dest / shard.file)
        done += shard.samples
        progress(done, len(dataset))
    return written


def _beside(dataset: ShardedDataset, dest: Path) -> list[Path]:
    """Write a file of column kinds, from which `paceline data convert` restores the columns, and one of class names."""
    contents, path = dataset.contents, dest / COLUMNS_FILE
    told = ExportedColumns(columns={c.name: c.kind for c in contents.columns}, classes=list(contents.classes))
    with replacing(path) as made:
        made.write_bytes(msgspec.json.encode(told))
    return [path, *_classes(dataset, dest)]
