"""Exports shards as TFRecord, HDF5, or tars for WebDataset. Each file is written as a whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.core.files import replacing
from paceline.data.format.model import Column
from paceline.data.format.tfrecord import encoded, framed
from paceline.data.reading.sharded import SamplePlace, ShardedDataset, missing_of

FORMATS = ("tfrecord", "hdf5", "webdataset")
CLASSES_FILE = "classes.txt"

Progress = Callable[[int, int], None]
Row = Mapping[str, bytes | int | float]


def export(dataset: ShardedDataset, dest: Path, kind: str, progress: Progress) -> list[Path]:
    """Write a data set in another format.

    Args:
        dataset: What to write.
        dest: A folder that is new or empty; of HDF5 the file.
        kind: One of `FORMATS`.
        progress: Is told samples that are done, and all.

    Returns:
        The files that were written.

    Raises:
        UsageError: There is something already.
        EnvironmentFault: It cannot be written, or a package is missing.
    """
    if dest.exists() and (dest.is_file() or any(dest.iterdir())):
        raise UsageError(f"{dest} already exists; name a new {'file' if kind == 'hdf5' else 'folder'}")
    try:
        if kind == "hdf5":
            return [_hdf5(dataset, dest, progress)]
        dest.mkdir(parents=True, exist_ok=True)
        written = _tfrecords(dataset, dest, progress) if kind == "tfrecord" else _tars(dataset, dest, progress)
        return [*written, *_classes(dataset, dest)]
    except OSError as error:
        raise EnvironmentFault(f"cannot write to {dest}: {error.strerror or error}; name another place") from error


def export_notes(dataset: ShardedDataset, kind: str) -> list[str]:
    """Return messages that say what another format cannot store of a data set."""
    notes = []
    columns = dataset.contents.columns
    if kind == "tfrecord":
        rounded = [column.name for column in columns if column.kind == "float" and _rounds(dataset, column)]
        notes += [f"TFRecord has floats of 32 bits: values of column {name} are rounded" for name in rounded]
    if kind == "hdf5":
        nans = [column.name for column in columns if column.optional and column.kind == "float"]
        notes += [f"HDF5 has no mark for missing values: those of column {name} become NaN" for name in nans]
    if kind != "webdataset":
        notes.append(f"the names of samples are not exported, such as {dataset.index(0).names[0]!r}")
    return notes


def _rounds(dataset: ShardedDataset, column: Column) -> bool:
    """Say whether numbers of a column are others in 32 bits."""
    for shard in range(len(dataset.contents.shards)):
        values = dataset.index(shard).arrays[f"{column.name}.value"]
        with np.errstate(over="ignore"):
            if not np.array_equal(values.astype(np.float32).astype(np.float64), values, equal_nan=True):
                return True
    return False


def _classes(dataset: ShardedDataset, dest: Path) -> list[Path]:
    """Write the names of the classes, one on each line, as `--classes-from` reads them."""
    if not dataset.contents.classes:
        return []
    path = dest / CLASSES_FILE
    path.write_text(
        "".join(f"{name}\n" for name in dataset.contents.classes), encoding="utf-8", errors="surrogateescape"
    )
    return [path]


def _rows(dataset: ShardedDataset, shard: int) -> Iterator[Row]:
    places = [SamplePlace(shard, row) for row in range(dataset.contents.shards[shard].samples)]
    columns = dataset.contents.columns
    numbers = {c.name: dataset.numbers(c.name, places).tolist() for c in columns if c.is_number}
    for row, place in enumerate(places):
        there = [column for column in columns if not missing_of(dataset, column, [place])[0]]
        yield {c.name: numbers[c.name][row] if c.is_number else dataset.payload(c.name, place) for c in there}


def _tfrecords(dataset: ShardedDataset, dest: Path, progress: Progress) -> list[Path]:
    """Write a file for each shard, named as TensorFlow's are."""
    count, done, written = len(dataset.contents.shards), 0, []
    for shard in range(count):
        path = dest / f"data-{shard:05d}-of-{count:05d}.tfrecord"
        with replacing(path) as made, made.open("wb") as file:
            for row in _rows(dataset, shard):
                file.write(framed(encoded({name: [value] for name, value in row.items()})))  # type: ignore[misc]
                done += 1
                progress(done, len(dataset))
        written.append(path)
    return written


def _tars(dataset: ShardedDataset, dest: Path, progress: Progress) -> list[Path]:
    """Copy the shards: they are tars that WebDataset reads."""
    done, written = 0, []
    for shard in dataset.contents.shards:
        with replacing(dest / shard.file) as made:
            shutil.copyfile(dataset.folder / shard.file, made)
        written.append(dest / shard.file)
        done += shard.samples
        progress(done, len(dataset))
    return written


def _hdf5(dataset: ShardedDataset, dest: Path, progress: Progress) -> Path:
    """Write a data set of HDF5 for each column: numbers as they are, the rest as bytes of variable length."""
    try:
        import h5py
    except ImportError as error:
        raise EnvironmentFault("HDF5 files need h5py: pip install 'paceline[formats]'") from error
    gaps = [c.name for c in dataset.contents.columns if c.optional and c.kind != "float"]
    if gaps:
        raise UsageError(
            f"samples have no {', '.join(gaps)}, and HDF5 cannot store missing values; use webdataset or tfrecord"
        )
    dest.parent.mkdir(parents=True, exist_ok=True)
    with replacing(dest) as made, h5py.File(made, "w") as file:
        own = {
            c.name: file.create_dataset(
                c.name, len(dataset), _dtype(c, h5py), fillvalue=np.nan if c.kind == "float" else None
            )
            for c in dataset.contents.columns
        }
        done = 0
        for shard in range(len(dataset.contents.shards)):
            for row_of, row in enumerate(_rows(dataset, shard)):
                for column in dataset.contents.columns:
                    if column.name in row:
                        own[column.name][done] = _of_hdf5(dataset, SamplePlace(shard, row_of), column, row[column.name])
                done += 1
                progress(done, len(dataset))
        if dataset.contents.classes:
            file.attrs["classes"] = list(dataset.contents.classes)
    return dest


def _of_hdf5(dataset: ShardedDataset, place: SamplePlace, column: Column, value: bytes | int | float) -> Any:
    if not isinstance(value, bytes):
        return value
    if column.kind != "text":
        return np.frombuffer(value, np.uint8)
    if b"\0" in value:
        raise UsageError(
            f"{dataset.name(place)}: {column.name} has a zero byte, which HDF5 ends a text at; use tfrecord"
        )
    return value.decode()


def _dtype(column: Column, h5py: Any) -> Any:
    if column.is_number:
        return np.int64 if column.kind == "int" else np.float64
    if column.kind == "text":
        return h5py.string_dtype()
    return h5py.vlen_dtype(np.uint8)
