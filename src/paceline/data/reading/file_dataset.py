"""Datasets in other formats, read without conversion: WebDataset, Parquet, Arrow, image folders and more."""

from __future__ import annotations

import copy
import hashlib
import logging
import os
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.data.format.folders import is_url, local_name
from paceline.data.format.image_modes import NotAnImage, column_mode, image_header, joint_palette, palette_of
from paceline.data.format.model import Column, Payload, Sample
from paceline.data.order.ranks import rank_and_world
from paceline.data.reading.pictures import Decoder, decoder_for, value_of
from paceline.data.sources import BadSample, Source
from paceline.data.sources.found import kind_at, source_of
from paceline.data.sources.sample_checks import fitting
from paceline.data.sources.webdataset import PACKED

Numbers = NDArray[np.int64]
_log = logging.getLogger("paceline.data")
_LOOKED_AT = 64  # images that determine the mode of their column
_LOOKED_INTO = 4  # groups that these images come from
_NAMED = 1024  # samples whose names are part of the digest
_GROUPS = 8  # the number of groups that readers cache
_warned: set[str] = set()  # paths of this process
_FILE_EACH = ("images", "table", "coco")  # formats in which each sample is a file
_GROUP_NAMES = {"parquet": "row group", "hdf5": "chunk", "zarr": "chunk", "mds": "compressed shard"}


class FileDataset:
    """A map-style dataset of files that were not converted. A `Loader` accepts it like shards."""

    def __init__(
        self, path: str | os.PathLike[str], format: str | None = None, classes: Sequence[str] | None = None
    ) -> None:
        """List the samples. Once per process, a warning says why reading may be slower than from shards.

        Args:
            path: A file or a folder on this machine, in any format that `paceline data convert` accepts as SRC.
            format: The format, as for the option ``--format``; None to detect it from file names.
            classes: The names of the classes in order, for folders of images and CSV files, such as those of the
                training set. None for the names in the source.

        Raises:
            UsageError: There are no samples, or they cannot be read one by one.
            EnvironmentFault: A package that reads the format is not installed.
        """
        if is_url(path):
            raise UsageError(f"FileDataset reads files on this machine; copy {path} first, or convert it to shards")
        self.path, self._given, self._classes = Path(local_name(path)), format, classes
        self.format = kind_at(self.path, format)
        source = source_of(self.path, self.format, classes)
        if any(file.name.lower().endswith(PACKED) for file in getattr(source, "files", ()) if isinstance(file, Path)):
            raise UsageError(
                f"{path} has compressed tars, which have no random access; unpack them (gunzip), or convert them: "
                f"`paceline data convert {path} SHARDS`"
            )
        self._open(source)
        self._version = None if self.format in _FILE_EACH else source.version
        self.columns: Sequence[Column] = [self._with_mode(column) for column in source.columns]
        self._warn()

    def _open(self, source: Source) -> None:
        self._source, self._process = source, os.getpid()
        reads_groups = getattr(source, "reads_groups", False)
        self._lock: AbstractContextManager[Any] = threading.Lock() if reads_groups else nullcontext()

    def __reduce__(self) -> tuple[Any, ...]:
        state = {"path": self.path, "_given": self._given, "_classes": self._classes, "format": self.format}
        state["_version"] = self._version
        return _sent, ({**state, "columns": self.columns}, self._source)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return a sample as a dict by column, with images as arrays and missing values as None.

        Args:
            number: The number of the sample, from 0; a negative number counts from the end.

        Raises:
            IndexError: The sample does not exist.
            BadSample: The sample cannot be read.
        """
        if not -len(self) <= number < len(self):
            raise IndexError(f"there is no sample {number}; the dataset has {len(self):,} samples")
        sample, decoder = self.sample(number % len(self)), decoder_for(self.columns, exact=False)
        return {
            column.name: self.value(number % len(self), column, sample[column.name], decoder) for column in self.columns
        }

    @property
    def classes(self) -> Sequence[str]:
        """The names of the labels, by number; empty if they have no names."""
        return self._source.classes

    @property
    def address(self) -> str:
        """The path of the files, for messages."""
        return str(self.path)

    @property
    def digest(self) -> str:
        """A digest of the number of samples and of the names and sizes of 1,024 of them."""
        source, count = self._source, len(self)
        numbers = np.linspace(0, count - 1, min(_NAMED, count)).astype(int).tolist()
        told = repr((count, self.format, [(source.name(number), source.size(number)) for number in numbers]))
        return hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()

    @property
    def group_starts(self) -> Numbers | None:
        """The first sample of each group that is read as a whole; None without groups, or if all fit in memory."""
        starts: Numbers | None = getattr(self._source, "group_starts", None)
        return starts if starts is not None and len(starts) > _GROUPS else None

    @property
    def window(self) -> int | None:
        """The number of groups that are shuffled together, so that they stay in memory; None for that of shards."""
        return _GROUPS if self.group_starts is not None else None

    def name(self, number: int) -> str:
        """Return the name of a sample, for messages."""
        return self._source.name(number)

    def sample(self, number: int) -> Sample:
        """Return a sample in the form of its source, checked as in a conversion. Safe for several threads.

        Raises:
            BadSample: The sample cannot be read.
            EnvironmentFault: This is the first sample in a worker process, and a file was changed.
        """
        if self._process != os.getpid():
            self.check_unchanged()
            self._open(copy.copy(self._source))  # a file that is open is not shared with the process before a fork
        with self._lock:
            sample = self._source.sample(number)
        return fitting(sample, self._source.name(number), self._source.columns)

    def check_unchanged(self) -> None:
        """Check that no file was changed since the samples were listed; otherwise, other samples would be read.

        A `Loader` calls this method at the start of each epoch. A folder with one file for each sample is not checked.

        Raises:
            EnvironmentFault: The modification time of a file is another one.
        """
        if self._version is not None and self._source.version != self._version:
            raise EnvironmentFault(
                f"a file of {self.path} was changed after FileDataset listed its samples; make the FileDataset again"
            )

    def value(
        self, number: int, column: Column, value: Any, decoder: Decoder | None, *, checks_mode: bool = True
    ) -> Any:
        """Return the decoded value of a column: pixels, an array, text, bytes, JSON, a number, or None if missing.

        Args:
            number: The number of the sample, for messages.
            column: The column, with the mode of its images.
            value: The value in the form of the source.
            decoder: Decodes images; None if there are none.
            checks_mode: Whether an image that would lose values in the mode is an error.

        Raises:
            BadSample: The value cannot be decoded, or an image would lose values in the mode of its column.
        """
        if not isinstance(value, Payload):
            return value
        try:
            if column.kind == "image" and checks_mode:
                self._check_mode(column, value.data)
            return value_of(column, memoryview(value.data), decoder)
        except ValueError as error:
            raise BadSample(f"{self.name(number)}: {column.name}: {error}") from error

    def _check_mode(self, column: Column, data: bytes) -> None:
        mode = image_header(data).mode
        if column.mode and column_mode({mode, column.mode}) != column.mode:
            raise ValueError(
                f"its mode is {mode}, and the first images that were looked at have {column.mode}; give the Loader "
                "image_mode='RGB', or convert the dataset"
            )

    def _with_mode(self, column: Column) -> Column:
        """Return a column of images with the mode that covers the images of up to 64 samples."""
        if column.kind != "image":
            return column
        modes, palette = set(), ""
        for number in self._some():
            with suppress(BadSample, NotAnImage):  # told when it is read
                value = self._source.sample(number)[column.name]
                if isinstance(value, Payload):
                    modes.add(image_header(value.data).mode)
                    palette = joint_palette(palette, palette_of(value.data) if "P" in modes else "")
        mode = column_mode(modes)
        return replace(column, mode=mode, palette=palette if mode == "P" else "")

    def _some(self) -> list[int]:
        """Return the numbers of up to 64 samples: spread over all, or in 4 groups if groups are read as a whole."""
        count, groups = len(self), self.group_starts
        if groups is None:
            return np.linspace(0, count - 1, min(_LOOKED_AT, count)).astype(int).tolist()
        begins = groups[np.linspace(0, len(groups) - 1, _LOOKED_INTO).astype(int)]
        found = (begins[:, None] + np.arange(_LOOKED_AT // _LOOKED_INTO)).ravel()
        return [number for number in found.tolist() if number < count]

    def _warn(self) -> None:
        """Log the notes of the source and the reason for slower reads, once per process, on rank 0."""
        if self.address in _warned or rank_and_world()[0]:
            return
        _warned.add(self.address)
        for text in (*getattr(self._source, "notes", ()), *(one for column in self.columns for one in column.notes)):
            _log.warning("%s", text)
        few = f", and shuffle=True mixes {_GROUPS} of them at a time" if self.group_starts is not None else ""
        given = f" --format {self._given}" if self._given is not None else ""
        _log.warning(
            "%s is read in its own format (%s), which may be slower than shards: %s%s. To convert it: paceline data "
            "convert%s %s SHARDS",
            self.path, self.format, self._reason(), few, given, self.path,
        )  # fmt: skip

    def _reason(self) -> str:
        """Return why reading may be slower than from shards."""
        if self.format in _FILE_EACH:
            return "each sample is a file of its own, and a crop decodes the whole image"
        if getattr(self._source, "group_starts", None) is not None:
            return f"a sample is read with its whole {_GROUP_NAMES[self.format]}"
        return "each sample is read and checked by itself"


def _sent(state: dict[str, Any], source: Source) -> FileDataset:
    """Return a dataset that was pickled."""
    dataset = FileDataset.__new__(FileDataset)
    dataset.__dict__.update(state)
    dataset._open(source)
    return dataset
