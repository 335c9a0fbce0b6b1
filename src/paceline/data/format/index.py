"""The index of a shard, a NumPy archive beside the tar: where each sample lies, one array for each property.

Of a column of bytes: ``<name>.offset``, ``.length``, ``.crc32`` and ``.suffix``; of images what `JpegFrame` has,
``.height`` and ``.width`` and so on, 0 where it is not known, ``.mode``, and where intervals of blocks begin that can
be decoded alone: of sample i ``.intervals[.first_interval[i]:.first_interval[i + 1]]``, with the end of the last; none
where there are none. Of a column of numbers ``<name>.value``, and if samples have none ``<name>.missing``; of bytes
that a sample does not have, the suffix is empty. ``name`` holds what samples are called.
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
_APART = "\0"  # the one character that no file's name has
_CODE = ("utf-8", "surrogateescape")  # names of files may be any bytes
_UNKNOWN = JpegFrame(0, 0, 0, 0, 0, 0)
_LARGEST = 1 << 16  # side of a PNG, in pixels, that is believed
_DECODED = (1, 3)  # components of JPEGs that simplejpeg makes RGB of
_NOTHING = Payload(data=b"", suffix="")  # of a sample that has none; every other suffix has letters
_WHOLE = np.empty(0, np.int32)  # of a picture that cannot be decoded in part


# What NumPy raises where an array or an archive is damaged: it reads heads as Python, and believes the lengths in them.
UNREADABLE = (
    ValueError, TypeError, KeyError, SyntaxError, tokenize.TokenError, OverflowError, MemoryError,
    OSError, EOFError, RuntimeError, struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


class DamagedData(RecordError):
    """A part of a data set that is not what was written; the message names the shard, and the sample if it is one."""


@dataclass(kw_only=True)
class _Payloads:
    """A column of bytes, as it grows."""

    offset: list[int] = field(default_factory=list)
    length: list[int] = field(default_factory=list)
    crc32: list[int] = field(default_factory=list)
    suffix: list[str] = field(default_factory=list)
    frames: list[JpegFrame[int]] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    intervals: list[NDArray[np.int32]] = field(default_factory=list)


class Growing:
    """An index, while its shard is written."""

    def __init__(self, columns: list[Column]) -> None:
        self._columns = columns
        self._payloads = {column.name: _Payloads() for column in columns if not column.is_number}
        self._numbers: dict[str, list[int | float | None]] = {column.name: [] for column in columns if column.is_number}
        self._names: list[str] = []

    def add(self, name: str, sample: Sample, offsets: Mapping[str, int]) -> None:
        """Take a sample, whose bytes begin at these places of the tar."""
        self._names.append(name)
        for column in self._columns:
            value = sample[column.name]
            if column.is_number:
                assert not isinstance(value, Payload)  # it is of another kind
                self._numbers[column.name].append(value)
                continue
            assert not isinstance(value, int | float)  # it is of another kind
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
        """Return the archive."""
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
        """Return the numbers of a column, and where there is none, if that is so for a sample."""
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
    """Return the mode and the size of an image, of a JPEG also what cuts it into parts; empty and 0 if not known."""
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
    """An index that was read."""

    shard: str
    arrays: Mapping[str, Array]

    def column(self, name: str, key: str) -> Array | None:
        """Return one array of a column; None where it is not there."""
        return self.arrays.get(f"{name}.{key}")

    @cached_property
    def names(self) -> list[str]:
        """What samples are called."""
        return self.arrays["name"].tobytes().decode(*_CODE).split(_APART)


def has_gaps(index: ShardIndex, column: Column) -> bool:
    """Say whether samples of a shard have no value in a column."""
    if column.is_number:
        return index.column(column.name, "missing") is not None
    return bool((index.arrays[f"{column.name}.suffix"] == b"").any())


def read_index(shard: str, packed: bytes) -> ShardIndex:
    """Read an index.

    Args:
        shard: What it is of, for messages.
        packed: The archive.

    Raises:
        DamagedData: It is none.
    """
    try:
        with np.load(io.BytesIO(packed), allow_pickle=False) as archive:
            return ShardIndex(shard=shard, arrays={key: archive[key] for key in archive.files})
    except UNREADABLE as error:
        raise DamagedData(f"the index of {shard} cannot be read ({error}); convert the data set again") from error
