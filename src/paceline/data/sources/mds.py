"""Folders in the MDS format of MosaicML Streaming: ``index.json`` names the shards, a sample is found by its number.

A shard holds the number n of its samples, n + 1 offsets (each ``uint32``, little-endian) and the samples. A sample
holds the sizes of those values whose encoding has no fixed size (``uint32``), then all values, in the order of columns.
"""

from __future__ import annotations

import bz2
import gzip
import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.data.format.column_kinds import array_of, column_names, json_of, kind_of_suffix, suffix_of_bytes
from paceline.data.format.image_modes import pil
from paceline.data.format.model import Column, ColumnKind, Payload, Sample, Value
from paceline.data.sources import BadSample
from paceline.data.sources.dataset_images import image_payload
from paceline.data.sources.files import times_of

INDEX = "index.json"
_SUFFIX = ".mds"
_VERSION = 2
_KEPT_UNPACKED = 8  # shards in memory
_UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
_NUMBERS = {
    name: np.dtype(name).newbyteorder("<")
    for name in (*_UNSIGNED, "int8", "int16", "int32", "int64", "float16", "float32", "float64")
}
_KINDS: Mapping[str, ColumnKind] = {
    **{name: "float" if dtype.kind == "f" else "int" for name, dtype in _NUMBERS.items()},
    "int": "int",
    "str": "text",
    "str_int": "int",
    "str_float": "float",
    "str_decimal": "text",
    "json": "json",
    "pil": "image",
    "jpeg": "image",
    "png": "image",
    "ndarray": "array",
}
# The types of arrays by the byte that stands before the values if the column does not fix the type.
_TYPES = {8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32"}
_TYPES |= {64: "uint64", 65: "int64", 66: "float64"}
_ARROW_CODECS = {"zstd": "zstd", "br": "brotli", "snappy": "snappy"}


class _ShardFile(msgspec.Struct):
    basename: str
    bytes: int


class MdsShard(msgspec.Struct, frozen=True):
    """What ``index.json`` says of a shard."""

    format: str
    version: int = 0
    samples: int = 0
    raw_data: _ShardFile | None = None
    zip_data: _ShardFile | None = None
    compression: str | None = None
    column_names: tuple[str, ...] = ()
    column_encodings: tuple[str, ...] = ()
    column_sizes: tuple[int | None, ...] = ()


class _MdsIndex(msgspec.Struct):
    shards: list[MdsShard]


@dataclass(frozen=True)
class Mds:
    """The samples of a folder of MDS shards."""

    folder: Path
    shards: Sequence[MdsShard]
    classes: Sequence[str] = ()

    def __reduce__(self) -> tuple[type[Mds], tuple[Path, Sequence[MdsShard]]]:
        return type(self), (self.folder, self.shards)

    @property
    def version(self) -> str:
        """A digest of the modification times of the files."""
        return times_of([self.folder / INDEX, *(path for path, _ in self._files)])

    @property
    def notes(self) -> Sequence[str]:
        """A message about shards in the folder that the index does not list."""
        named = {_stem(path) for path, _ in self._files}
        more = [path for path in sorted(self.folder.glob(f"*{_SUFFIX}*")) if _stem(path) not in named]
        first = ", ".join(path.name for path in more[:3]) + ", ..." * (len(more) > 3)
        return [f"{self.folder} has shards that its {INDEX} does not list: {first}"] if more else []

    @cached_property
    def _files(self) -> list[tuple[Path, bool]]:
        """The file of each shard and whether the file is compressed."""
        return [_file_of(self.folder, shard) for shard in self.shards]

    @cached_property
    def _unpacked(self) -> Callable[[int], bytes]:
        def unpack(number: int) -> bytes:
            shard, file = self.shards[number], self._files[number][0]
            found = _unpack(file, shard)
            _check_count(self.folder / INDEX, file, shard, found)
            return found

        return lru_cache(_KEPT_UNPACKED)(unpack)

    @cached_property
    def reads_groups(self) -> bool:
        """Whether reading one sample reads others too: a compressed shard is unpacked as a whole."""
        return any(is_packed for _, is_packed in self._files)

    @cached_property
    def _first(self) -> NDArray[np.int64]:
        """The number of the first sample of each shard, and the number of samples at the end."""
        return np.append(0, np.cumsum([shard.samples for shard in self.shards])).astype(np.int64)

    @property
    def group_starts(self) -> NDArray[np.int64] | None:
        """The first sample of each shard if shards are unpacked as a whole, else None."""
        return np.unique(self._first[:-1]) if self.reads_groups else None

    def __len__(self) -> int:
        return int(self._first[-1])

    @cached_property
    def _names(self) -> Mapping[str, str]:
        """The names of columns, by their names in the shards."""
        return column_names(self.shards[0].column_names)

    @cached_property
    def columns(self) -> Sequence[Column]:
        """The columns of the first shard; the kind of bytes is that of the first sample."""
        shard = self.shards[0]
        return [
            Column(name=self._names[name], kind=self._kind(name, encoding))
            for name, encoding in zip(shard.column_names, shard.column_encodings, strict=True)
        ]

    def _kind(self, name: str, encoding: str) -> ColumnKind:
        return kind_of_suffix(suffix_of_bytes(self._values(0)[name])) if encoding == "bytes" else _kind_of(encoding)

    def size(self, number: int) -> int:
        """Return the average number of bytes of the samples in the same shard."""
        shard = self.shards[self._place(number)[0]]
        return shard.raw_data.bytes // max(1, shard.samples) if shard.raw_data is not None else 0

    def name(self, number: int) -> str:
        """Return the file of the shard and the number of the sample in the shard."""
        shard, row = self._place(number)
        return f"{self._files[shard][0].name}, sample {row}"

    def sample(self, number: int) -> Sample:
        """Read a sample."""
        shard, made, own = self._place(number)[0], dict[str, Value](), self._values(number)
        for name, encoding in zip(self.shards[shard].column_names, self.shards[shard].column_encodings, strict=True):
            try:
                made[self._names[name]] = _value(encoding, own[name])
            except (ValueError, KeyError, IndexError, TypeError) as error:
                raise BadSample(f"{self.name(number)}: {name}: {error}") from error
        return made

    def _place(self, number: int) -> tuple[int, int]:
        shard = int(np.searchsorted(self._first, number, side="right")) - 1
        return shard, number - int(self._first[shard])

    def _values(self, number: int) -> dict[str, bytes]:
        """Return the encoded values of a sample by column.

        Raises:
            BadSample: The values cannot be read, or their sizes do not match the sample.
        """
        shard, row = self._place(number)
        try:
            data, own = self._bytes(shard, row), self.shards[shard]
            open_sizes = sum(size is None for size in own.column_sizes)
            told = iter(np.frombuffer(data, "<u4", open_sizes).tolist())
            sizes = [next(told) if size is None else size for size in own.column_sizes]
        except (OSError, ValueError, EOFError, zlib.error) as error:
            raise BadSample(f"{self.name(number)} cannot be read: {error}") from error
        ends = np.cumsum([4 * open_sizes, *sizes]).tolist()
        if ends[-1] != len(data):
            raise BadSample(f"{self.name(number)} is damaged: its values take {ends[-1]:,} of {len(data):,} bytes")
        return {name: data[a:b] for name, a, b in zip(own.column_names, ends[:-1], ends[1:], strict=True)}

    def _bytes(self, shard: int, row: int) -> bytes:
        """Return the bytes of a sample in its shard.

        Raises:
            ValueError: The offsets of the sample are damaged.
        """
        path, is_packed = self._files[shard]
        if is_packed:
            whole = self._unpacked(shard)
            begin, end = np.frombuffer(whole, "<u4", 2, 4 * (1 + row)).tolist()
            data = whole[begin:end]
        else:
            with path.open("rb") as file:
                begin, end = np.frombuffer(os.pread(file.fileno(), 8, 4 * (1 + row)), "<u4", 2).tolist()
                data = os.pread(file.fileno(), max(0, end - begin), begin)
        if len(data) != end - begin:
            raise ValueError(f"bytes {begin:,} to {end:,} are not in its shard")
        return data


def _stem(path: Path) -> str:
    return path.name.partition(_SUFFIX)[0]


def is_mds(folder: Path) -> bool:
    """Return whether a folder is in the MDS format: its index lists MDS shards, or it has shards and no index."""
    try:
        shards = msgspec.json.decode((folder / INDEX).read_bytes())["shards"]
        return bool(shards) and shards[0]["format"] == "mds"
    except (FileNotFoundError, NotADirectoryError):
        return folder.is_dir() and next(folder.glob(f"*{_SUFFIX}*"), None) is not None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, IndexError):
        return False


def mds_folder(folder: Path) -> Mds:
    """List the shards of a folder in the MDS format.

    Raises:
        UsageError: There is no index, the index cannot be used, a shard is missing or was cut off, or an uncompressed
            shard has another number of samples than the index says. Compressed shards are checked when they are read.
    """
    path = folder / INDEX
    try:
        shards = msgspec.json.decode(path.read_bytes(), type=_MdsIndex).shards
    except FileNotFoundError as error:
        raise UsageError(f"{folder} has MDS shards and no {INDEX}; finish writing it (MDSWriter.finish)") from error
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as the index of MDS shards: {error}") from error
    shards = [shard for shard in shards if shard.samples]
    if not shards:
        raise UsageError(f"{path} lists no samples")
    for shard in shards:
        _check(path, shard, shards[0])
    found = Mds(folder, shards)  # `_files` raises an error if a shard is missing
    for shard, (file, is_packed) in zip(found.shards, found._files, strict=True):
        if not is_packed:
            with file.open("rb") as opened:
                _check_count(path, file, shard, opened.read(4))
    return found


def _check_count(index: Path, file: Path, shard: MdsShard, head: bytes) -> None:
    """Check that the header of a shard has the number of samples that the index lists.

    Raises:
        UsageError: The numbers differ.
    """
    count = int.from_bytes(head[:4], "little")
    if count != shard.samples:
        raise UsageError(
            f"{index} lists {shard.samples:,} samples for {file.name}, but the shard has {count:,}; copy both files "
            "again, or write them again"
        )


def _check(path: Path, shard: MdsShard, first: MdsShard) -> None:
    """Refuse a shard that cannot be read together with the first one.

    Raises:
        UsageError: The format, the version or the columns differ.
    """
    if shard.format != "mds" or shard.version != _VERSION or shard.raw_data is None:
        raise UsageError(f"{path} lists a shard of format {shard.format}, version {shard.version}; allowed: mds, 2")
    if not len(shard.column_names) == len(shard.column_encodings) == len(shard.column_sizes):
        raise UsageError(f"{path} is damaged: a shard has names, encodings and sizes of different numbers of columns")
    for encoding in shard.column_encodings:
        if encoding != "bytes":
            _kind_of(encoding)
    if (shard.column_names, shard.column_encodings) != (first.column_names, first.column_encodings):
        said = [", ".join(map(" ".join, zip(s.column_names, s.column_encodings, strict=True))) for s in (first, shard)]
        raise UsageError(f"{path} lists shards with different columns ({said[0]}; {said[1]}); split the folder")


def _kind_of(encoding: str) -> ColumnKind:
    """Return the kind of a column by its encoding.

    Raises:
        UsageError: Shards of Paceline cannot store values in this encoding.
    """
    kind = _KINDS.get(encoding.partition(":")[0])
    if kind is None:
        why = ", which can run any code when it is read" if encoding == "pkl" else ""
        raise UsageError(
            f"a column has the MDS encoding {encoding}{why}; write it anew with one of bytes, {', '.join(_KINDS)}"
        )
    return kind


def _file_of(folder: Path, shard: MdsShard) -> tuple[Path, bool]:
    """Return the file of a shard and whether it is compressed. An uncompressed file comes first.

    Raises:
        UsageError: The file is missing, or its size differs from that in the index.
    """
    for file, is_packed in ((shard.raw_data, False), (shard.zip_data, True)):
        path = folder / file.basename if file is not None else folder
        if file is None or not path.is_file():
            continue
        if path.stat().st_size != file.bytes:
            raise UsageError(f"{path} has {path.stat().st_size:,} of {file.bytes:,} bytes; copy it again")
        return path, is_packed
    named = " or ".join(file.basename for file in (shard.raw_data, shard.zip_data) if file is not None)
    raise UsageError(f"{folder} lacks {named}, which its {INDEX} lists; copy it")


def _unpack(path: Path, shard: MdsShard) -> bytes:
    """Return the bytes of a compressed shard before compression.

    Raises:
        ValueError: The file is damaged.
        EnvironmentFault: The package that unpacks it is not installed.
    """
    data, size = path.read_bytes(), shard.raw_data.bytes if shard.raw_data is not None else 0
    name = (shard.compression or "").partition(":")[0]
    if name in ("gz", "bz2"):
        return gzip.decompress(data) if name == "gz" else bz2.decompress(data)
    if name not in _ARROW_CODECS:
        raise UsageError(f"{path} has the compression {name}; allowed: bz2, gz, {', '.join(_ARROW_CODECS)}")
    try:
        import pyarrow
    except ImportError as error:
        raise EnvironmentFault(f"MDS shards with {name} need pyarrow: pip install 'paceline[formats]'") from error
    found: bytes = pyarrow.decompress(data, decompressed_size=size, codec=_ARROW_CODECS[name], asbytes=True)
    return found


def _value(encoding: str, data: bytes) -> Value:
    """Return a decoded value in the form of a sample.

    Raises:
        ValueError: The value is damaged, or shards cannot store it.
    """
    name, _, fixed = encoding.partition(":")
    if name == "int" or name in _NUMBERS:
        (number,) = np.frombuffer(data, _NUMBERS.get(name, _NUMBERS["int64"])).tolist()
        return number
    if name in ("str_int", "str_float"):
        return int(data) if name == "str_int" else float(data)
    if name in ("str", "str_decimal"):
        return Payload(data=data, suffix="txt")
    if name == "json":
        return json_of(json.loads(data))
    if name == "ndarray":
        return array_of(_array(data, *fixed.split(":")))
    return image_payload(_pixels(data), "png") if name == "pil" else Payload(data=data, suffix=suffix_of_bytes(data))


def _array(data: bytes, type_name: str = "", sides: str = "") -> NDArray[Any]:
    """Return an array. Its type and shape stand before the values unless the column fixes them."""
    at = 0
    if not type_name:
        type_name, at = _TYPES[data[0]], 1
    shape = [int(side) for side in sides.split(",")] if sides else []
    if not sides:
        axes, shape_type = data[at] >> 2, _NUMBERS[_UNSIGNED[data[at] & 3]]
        shape = np.frombuffer(data, shape_type, axes, at + 1).tolist()
        at += 1 + axes * shape_type.itemsize
    return np.frombuffer(data, _NUMBERS[type_name], offset=at).reshape(shape)


def _pixels(data: bytes) -> Any:
    """Return an image, stored as width, height, length of the mode, the mode and the pixels."""
    width, height, length = np.frombuffer(data, "<u4", 3).tolist()
    return pil().frombytes(data[12 : 12 + length].decode(), (width, height), data[12 + length :])
