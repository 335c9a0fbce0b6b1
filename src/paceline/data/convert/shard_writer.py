"""Writing of a shard: a tar that any tool reads, and its index. A crash leaves no partial shard.

The files of a sample share a name and differ in their suffix, as in WebDataset: ``000000017.jpg``, ``000000017.cls``.
Numbers are also written as text files, for readers without the index.
"""

from __future__ import annotations

import os
import tarfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from isal import isal_zlib

from paceline.core.errors import EnvironmentFault
from paceline.core.files import write_durably
from paceline.data.format.index import Growing
from paceline.data.format.model import Column, Payload, Sample, Shard, index_name

_BLOCK = tarfile.BLOCKSIZE
_PIECE = 1 << 22


class ShardWriter:
    """Writes one shard to a temporary file; leaving the context before `finish` deletes the file."""

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        self._path = path
        self._columns = list(columns)
        self._index = Growing(self._columns)
        self._samples = 0
        self._size = self._crc32 = 0
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.part")  # two writers never share a file
        self._made: BinaryIO = open(self._temporary, "wb", buffering=1 << 20)  # noqa: SIM115

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._made.close()
        self._temporary.unlink(missing_ok=True)

    def add(self, key: str, name: str, sample: Sample) -> None:
        """Write a sample.

        Args:
            key: The name of its files in the tar, without suffix.
            name: Its name for messages, such as the original file.
            sample: Its values.
        """
        offsets = {}
        for column in self._columns:
            if sample[column.name] is None:
                offsets[column.name] = self._size
                continue
            data, suffix = _written(column, sample)
            self._write(_header(f"{key}.{suffix}", len(data)))
            offsets[column.name] = self._size
            self._write(data)
            self._write(bytes(-len(data) % _BLOCK))
        self._index.add(name, sample, offsets)
        self._samples += 1

    def finish(self) -> Shard:
        """Write the index, and then move the tar to its path, so that a tar never lacks its index."""
        self._write(bytes(2 * _BLOCK))
        index = self._index.packed()
        self._made.flush()
        os.fsync(self._made.fileno())
        write_durably(self._path.with_name(index_name(self._path.name)), index)
        os.replace(self._temporary, self._path)
        return Shard(
            file=self._path.name,
            samples=self._samples,
            bytes=self._size,
            crc32=self._crc32,
            index_bytes=len(index),
            index_crc32=zlib.crc32(index),
        )

    @property
    def size(self) -> int:
        """The number of bytes written so far."""
        return self._size

    def _write(self, data: bytes) -> None:
        self._made.write(data)
        self._crc32 = isal_zlib.crc32(data, self._crc32)
        self._size += len(data)


def write_shard(path: Path, columns: Sequence[Column], samples: Iterable[tuple[str, str, Sample]]) -> Shard:
    """Write a complete shard.

    Args:
        path: The path of the tar.
        columns: The columns of the samples.
        samples: The key, name and values of each sample.

    Raises:
        EnvironmentFault: The shard cannot be written. No partial file stays.
    """
    try:
        with ShardWriter(path, columns) as writer:
            for key, name, sample in samples:
                writer.add(key, name, sample)
            return writer.finish()
    except OSError as error:
        if error.filename is not None and Path(error.filename).parent != path.parent:
            raise  # an error of reading the source
        raise EnvironmentFault(
            f"cannot write {path}: {error.strerror or error}; free some space, or name another folder"
        ) from error


def _written(column: Column, sample: Sample) -> tuple[bytes, str]:
    """Return the content and the suffix of the file for a value."""
    value = sample[column.name]
    if isinstance(value, Payload):
        named = "" if column.kind == "image" and column.name in ("image", value.suffix) else column.name
        return value.data, ".".join(part for part in (named, value.suffix) if part)
    is_class = column.name == "label" and column.kind == "int"
    return str(value).encode(), "cls" if is_class else f"{column.name}.{column.kind}"


def _header(name: str, size: int) -> bytes:
    """Return the tar header of a file; names that are too long for USTAR are in an extra header of PAX."""
    header = tarfile.TarInfo(name)
    header.size = size
    try:
        return header.tobuf(tarfile.USTAR_FORMAT)
    except ValueError:  # more than 100 bytes
        return header.tobuf(tarfile.PAX_FORMAT)


def crc32_of(path: Path) -> int:
    """Return the CRC-32 of a file."""
    found = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            found = isal_zlib.crc32(piece, found)
    return found
