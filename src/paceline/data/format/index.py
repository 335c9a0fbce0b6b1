"""The index of a shard: a NumPy archive beside the tar, with an array for each property of the samples.

    name                                  names of the samples, joined by NUL characters
    <column>.offset .length .crc32 .suffix   of a column of bytes; an empty suffix: the sample has no value
    <column>.value                        of a column of numbers; also .missing, if some samples have no value

A column of images also has ``.mode`` and the fields of `JpegFrame`, such as ``.height`` and ``.width``; 0 is unknown.
The intervals of a JPEG that can be decoded alone (`jpeg.intervals_of`) begin, for sample i, at the offsets
``.intervals[.first_interval[i]:.first_interval[i + 1]]``, whose last entry is the end; the slice is empty if the image
has none.
"""

from __future__ import annotations

import io
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from paceline.core.errors import RecordError
from paceline.data.format.image_modes import NotAnImage, image_header
from paceline.data.format.jpeg import JpegFrame, header_of, intervals_of
from paceline.data.format.model import Column, Payload, Sample

Array = NDArray[np.generic]
_JPEG = b"\xff\xd8"
_APART = "\0"  # the one character that file names cannot have
_CODE = ("utf-8", "surrogateescape")  # file names may have any bytes
_UNKNOWN = JpegFrame(0, 0, 0, 0, 0, 0)
_LARGEST = 1 << 16  # pixels of a side; larger sizes of other formats than JPEG count as unknown
_DECODED = (1, 3)  # numbers of components of JPEGs that simplejpeg converts to RGB
_NOTHING = Payload(data=b"", suffix="")  # stands for a missing value; every other suffix has letters
_WHOLE = np.empty(0, np.int32)  # the intervals of an image that cannot be cut


# NumPy's errors for damaged arrays and archives: it parses headers as Python code, and trusts the lengths in them.
UNREADABLE = (
    ValueError, TypeError, KeyError, SyntaxError, tokenize.TokenError, OverflowError, MemoryError,
    OSError, EOFError, RuntimeError, struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


class DamagedData(RecordError):
    """A part of a dataset is not what was written; the message names the shard, and the sample if known."""


@dataclass(kw_only=True)
class _Payloads:
    """The index entries of a column of bytes, with one item for each sample."""

    offset: list[int] = field(default_factory=list)
    length: list[int] = field(default_factory=list)
    crc32: list[int] = field(default_factory=list)
    suffix: list[str] = field(default_factory=list)
    frames: list[JpegFrame[int]] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    intervals: list[NDArray[np.int32]] = field(default_factory=list)


class Growing:
    """Collects the index of a shard while the shard is written."""

    def __init__(self, columns: list[Column]) -> None:
        self._columns = columns
        self._payloads = {column.name: _Payloads() for column in columns if not column.is_number}
        self._numbers: dict[str, list[int | float | None]] = {column.name: [] for column in columns if column.is_number}
        self._names: list[str] = []

    def add(self, name: str, sample: Sample, offsets: Mapping[str, int]) -> None:
        """Add a sample.

        Args:
            name: The name of the sample.
            sample: Its values.
            offsets: The byte offset of each value in the tar, by column.
        """
        self._names.append(name)
        for column in self._columns:
            value = sample[column.name]
            if column.is_number:
                assert not isinstance(value, Payload)
                self._numbers[column.name].append(value)
                continue
            assert not isinstance(value, int | float)
            own, value = self._payloads[column.name], value or _NOTHING
            own.offset.append(offsets[column.name])
            own.length.append(len(value.data))
            own.crc32.append(isal_zlib.crc32(value.data))
            own.suffix.append(value.suffix)
            if column.kind == "image":
                mode, frame, intervals = _picture(value)
                own.modes.append(mode)
                own.frames.append(frame)
                own.intervals.append(intervals)

    def packed(self) -> bytes:
        """Return the index as the bytes of a NumPy archive."""
        arrays: dict[str, Array] = {"name": np.frombuffer(_APART.join(self._names).encode(*_CODE), np.uint8)}
        for column in self._columns:
            if column.is_number:
                arrays |= {f"{column.name}.{key}": array for key, array in self._values(column).items()}
            else:
                arrays |= {f"{column.name}.{key}": array for key, array in _arrays(self._payloads[column.name]).items()}
        file = io.BytesIO()
        np.savez(file, **arrays)  # type: ignore[arg-type]
        return file.getvalue()

    def _values(self, column: Column) -> dict[str, Array]:
        """Return the arrays of a column of numbers: the values, and flags of missing values if there are any."""
        values = self._numbers[column.name]
        kind, gap = (np.int64, 0) if column.kind == "int" else (np.float64, np.nan)
        missing = np.array([value is None for value in values], np.bool_)
        found: dict[str, Array] = {"value": np.array([gap if value is None else value for value in values], kind)}
        return found | {"missing": missing} if missing.any() else found


def _arrays(own: _Payloads) -> dict[str, Array]:
    found: dict[str, Array] = {
        "offset": np.array(own.offset, np.int64),
        "length": np.array(own.length, np.int64),
        "crc32": np.array(own.crc32, np.uint32),
        "suffix": np.array(own.suffix, "S"),
    }
    if own.frames:
        for key, values in zip(JpegFrame._fields, zip(*own.frames, strict=True), strict=True):
            found[key] = np.array(values, np.int32)
        found["mode"] = np.array(own.modes, "S")
        found["intervals"] = np.concatenate(own.intervals)
        found["first_interval"] = np.cumsum([0, *map(len, own.intervals)]).astype(np.int64)
    return found


def _picture(value: Payload) -> tuple[str, JpegFrame[int], NDArray[np.int32]]:
    """Return the mode, the frame and the intervals of an image; empty and 0 if unknown or not a JPEG."""
    try:
        mode, width, height = image_header(value.data)
    except NotAnImage:
        return "", _UNKNOWN, _WHOLE
    if not value.data.startswith(_JPEG):
        return (
            mode,
            _UNKNOWN._replace(height=height, width=width) if max(width, height) <= _LARGEST else _UNKNOWN,
            _WHOLE,
        )
    header = header_of(value.data)
    intervals = intervals_of(value.data, header) if header.components in _DECODED else None
    return mode, header.frame, intervals if intervals is not None else _WHOLE


@dataclass(frozen=True)
class ShardIndex:
    """The index of a shard, as arrays in memory."""

    shard: str
    arrays: Mapping[str, Array]

    def column(self, name: str, key: str) -> Array | None:
        """Return an array of a column, or None if the index does not have it."""
        return self.arrays.get(f"{name}.{key}")

    @cached_property
    def names(self) -> list[str]:
        """The names of the samples."""
        return self.arrays["name"].tobytes().decode(*_CODE).split(_APART)


def has_gaps(index: ShardIndex, column: Column) -> bool:
    """Return whether any sample of a shard has no value in a column."""
    if column.is_number:
        return index.column(column.name, "missing") is not None
    return bool((index.arrays[f"{column.name}.suffix"] == b"").any())


class _Arrays(dict[str, Array]):
    """The arrays of an index. An array that is not there was lost: the archive's directory is damaged."""

    shard = ""

    def __missing__(self, key: str) -> Array:
        raise DamagedData(f"the index of {self.shard} has no array {key}; convert the data set again")


def read_index(shard: str, packed: bytes) -> ShardIndex:
    """Return an index from the bytes of its archive.

    Args:
        shard: The name of the shard, for messages.
        packed: The bytes of the archive.

    Raises:
        DamagedData: The archive is damaged.
    """
    try:
        with np.load(io.BytesIO(packed), allow_pickle=False) as archive:
            arrays = _Arrays({key: archive[key] for key in archive.files})
            arrays.shard = shard
            return ShardIndex(shard=shard, arrays=arrays)
    except UNREADABLE as error:
        raise DamagedData(f"the index of {shard} cannot be read ({error}); convert the data set again") from error
