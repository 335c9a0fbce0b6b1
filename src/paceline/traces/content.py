"""The bytes of a capture: read, and unpacked as far as they go."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import RecordError

_GZIP = b"\x1f\x8b"
_WITH_HEADER = 31  # gzip's header and trailer, for zlib
_CHUNK_BYTES = 1 << 22
_HEAD_BYTES = 1 << 10
_MARK = b"\xef\xbb\xbf"  # that a text is UTF-8


class NotACapture(RecordError):
    """A file that is no capture, or of which nothing could be read; the message says what it is instead."""


@dataclass(frozen=True, kw_only=True)
class Content:
    """What a file holds."""

    data: bytes
    problems: tuple[str, ...] = ()

    @property
    def document(self) -> bytes:
        """As one JSON object: the format allows a list of events alone, too."""
        data = self.data.removeprefix(_MARK)
        return b'{"traceEvents":' + data + b"}" if data[:_HEAD_BYTES].lstrip()[:1] == b"[" else data


def content_of(path: Path) -> Content:
    """Return the bytes of a file, unpacked where it is gzipped; of one that is cut off, what is there.

    Raises:
        NotACapture: It cannot be read, or is empty.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise NotACapture(f"{path} cannot be read: {error.strerror or error}") from error
    content = _unpacked(path, data) if data[:2] == _GZIP else Content(data=data)
    if not content.data.strip():
        raise NotACapture(f"{path} is empty" if not content.problems else f"{content.problems[0]}: nothing is left")
    return content


def _unpacked(path: Path, packed: bytes) -> Content:
    """Unpack one or several gzip members in a row."""
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
            problem = f"{path}: its gzip stream is damaged ({error}); what comes before is read"
            return Content(data=b"".join(parts), problems=(problem,))
        if not member.eof:
            read = sum(map(len, parts))
            problem = f"{path}: its gzip stream ends early; {read:,} bytes of content are read"
            return Content(data=b"".join(parts), problems=(problem,))
        consumed = begin + min(_CHUNK_BYTES, len(packed) - begin) - len(member.unused_data)
        packed = packed[consumed:] if sum(map(len, parts)) > size or consumed else b""
    return Content(data=b"".join(parts))
