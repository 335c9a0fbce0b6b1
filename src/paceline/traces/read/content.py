"""Reads the bytes of a capture file, decompressed up to the first damage of the file."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from isal import isal_zlib

from paceline.core.errors import RecordError

_GZIP = b"\x1f\x8b"
_WITH_HEADER = 31  # gzip's header and trailer, for zlib
_CHUNK_BYTES = 1 << 22
_HEAD_BYTES = 1 << 10
_FAULT = cast(type[Exception], isal_zlib.error)  # its stub takes the class for an instance
_MARK = b"\xef\xbb\xbf"  # byte order mark of UTF-8


class NotACapture(RecordError):
    """The file is not a capture, or nothing of it could be read; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Content:
    """The content of a capture file, with messages about damage to it."""

    data: bytes
    problems: tuple[str, ...] = ()

    @property
    def document(self) -> bytes:
        """Return the content as one JSON object.

        The format also allows a bare list of events; such a list is wrapped in an object.
        """
        data = self.data.removeprefix(_MARK)
        return b'{"traceEvents":' + data + b"}" if data[:_HEAD_BYTES].lstrip()[:1] == b"[" else data


def read_content(path: Path) -> Content:
    """Return the content of a file, decompressed if it is gzipped. Of a truncated file, the intact part is returned.

    Raises:
        NotACapture: The file cannot be read, or is empty.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise NotACapture(f"{path} cannot be read: {error.strerror or error}") from error
    content = _unpacked(path, data) if data[:2] == _GZIP else Content(data=data)
    if not content.data[:_HEAD_BYTES].strip() and not content.data.strip():
        raise NotACapture(
            f"{path} is empty" if not content.problems else f"{content.problems[0]}: nothing could be read"
        )
    return content


def _unpacked(path: Path, packed: bytes) -> Content:
    """Return the decompressed content of a gzip file with one or several members.

    Each member is decompressed in one call; a damaged file is decompressed in small chunks.
    """
    parts, rest = [], packed
    try:
        while rest[:2] == _GZIP:
            member = isal_zlib.decompressobj(_WITH_HEADER)
            parts.append(member.decompress(rest))
            if not member.eof:
                return _piece_by_piece(path, packed)
            rest = member.unused_data
    except _FAULT:
        return _piece_by_piece(path, packed)
    return Content(data=parts[0] if len(parts) == 1 else b"".join(parts))


def _piece_by_piece(path: Path, packed: bytes) -> Content:
    """Return the content of a gzip file, decompressed in small chunks up to the damage."""
    parts: list[bytes] = []
    while packed[:2] == _GZIP:
        member = zlib.decompressobj(_WITH_HEADER)
        size = sum(map(len, parts))
        try:
            for begin in range(0, len(packed), _CHUNK_BYTES):
                parts.append(member.decompress(packed[begin : begin + _CHUNK_BYTES]))
                if member.eof:
                    break
        except zlib.error as error:
            problem = (
                f"{path}: the gzip stream of this file is damaged ({error}); only the part before the damage was read"
            )
            return Content(data=b"".join(parts), problems=(problem,))
        if not member.eof:
            read = sum(map(len, parts))
            problem = (
                f"{path}: the gzip stream of this file ends early; {read:,} bytes of uncompressed content were read"
            )
            return Content(data=b"".join(parts), problems=(problem,))
        consumed = begin + min(_CHUNK_BYTES, len(packed) - begin) - len(member.unused_data)
        packed = packed[consumed:] if sum(map(len, parts)) > size or consumed else b""
    return Content(data=b"".join(parts))
