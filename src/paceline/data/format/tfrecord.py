"""TFRecord files: framed records with checksums, each of which is an `Example` protocol buffer of named lists.

    frame    length (8 bytes), masked CRC-32C of these, data, masked CRC-32C of the data; little-endian
    Example  1: Features {1: map of name (1) to Feature (2)}
    Feature  1: BytesList {1: bytes}, 2: FloatList {1: float, packed}, 3: Int64List {1: varint, packed}

Source: TensorFlow's documentation of the format, ``example.proto`` and ``feature.proto``.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import BinaryIO

Feature = Sequence[bytes] | Sequence[float] | Sequence[int]
_POLYNOMIAL = 0x82F63B78  # of CRC-32C (Castagnoli), reversed
_MASK_DELTA = 0xA282EAD8
_SHORT = 64  # bytes up to which `crc32c` is fast enough
_BYTES, _FLOATS, _INTEGERS = 1, 2, 3
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


class NotATFRecord(ValueError):
    """The bytes are no record, or a damaged record."""


def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        found.append(byte)
    return tuple(found)


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of data, in pure Python: for short data, and if google-crc32c is not installed."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """Return the masked CRC-32C, as TFRecord frames store it."""
    crc = crc32c(data) if len(data) <= _SHORT else (fast_crc32c() or crc32c)(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


@cache
def fast_crc32c() -> Callable[[bytes], int] | None:
    """Return the CRC-32C function of google-crc32c, or None if it is not installed or not compiled."""
    try:
        from google_crc32c import implementation, value
    except ImportError:
        return None
    found: Callable[[bytes], int] = value
    return found if implementation != "python" else None


def places(file: BinaryIO) -> Iterator[tuple[int, int]]:
    """Yield the offset and length in bytes of each record's data; only the headers are read.

    Raises:
        NotATFRecord: A header is damaged, or the file ends within a record.
    """
    size = file.seek(0, 2)
    at = 0
    while at < size:
        file.seek(at)
        head = file.read(12)
        if len(head) < 12:
            raise NotATFRecord(f"it ends inside the header of a record, at byte {at:,}")
        length, checksum = struct.unpack("<QI", head)
        if checksum != masked_crc32c(head[:8]):
            raise NotATFRecord(f"the header of a record at byte {at:,} is damaged, or this is not a TFRecord file")
        if at + 16 + length > size:
            raise NotATFRecord(f"it ends inside a record, at byte {size:,}")
        yield at + 12, length
        at += 16 + length


def unframed(data: bytes) -> bytes:
    """Return the data of a record without the checksum behind it, which is compared if that is fast.

    Raises:
        NotATFRecord: The checksum does not match.
    """
    own, checksum = data[:-4], int.from_bytes(data[-4:], "little")
    if (len(own) <= _SHORT or fast_crc32c() is not None) and masked_crc32c(own) != checksum:
        raise NotATFRecord("it is damaged: its checksum does not match")
    return own


def framed(data: bytes) -> bytes:
    """Return data as a framed record."""
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked_crc32c(head)) + data + struct.pack("<I", masked_crc32c(data))


def decoded(data: bytes) -> dict[str, Feature]:
    """Return the features of an `Example` by name.

    Numbers are arrays with the type code "q" (integers) or "f" (floats), so that an empty list keeps its type.

    Raises:
        NotATFRecord: The bytes are no `Example`.
    """
    try:
        found = {}
        for part, features in _fields(data):
            if part != 1:
                raise NotATFRecord("a record is not an Example; a SequenceExample is not supported")
            for _, entry in _fields(_as_bytes(features)):
                pair = dict(_fields(_as_bytes(entry)))
                found[_as_bytes(pair[1]).decode()] = _feature(_as_bytes(pair.get(2, b"")))
        return found
    except (KeyError, IndexError, UnicodeDecodeError, struct.error, TypeError) as error:
        raise NotATFRecord(f"a record is not an Example ({error})") from error


def encoded(features: Mapping[str, Feature]) -> bytes:
    """Return the bytes of an `Example` with the given features."""
    entries = b"".join(
        _field(1, _field(1, name.encode()) + _field(2, _list(values))) for name, values in features.items()
    )
    return _field(1, entries)


def _feature(data: bytes) -> Feature:
    values: list[bytes] | array[float] | array[int] = []
    for kind, inner in _fields(data):
        own = [value for _, value in _fields(_as_bytes(inner))]
        if kind == _BYTES:
            values = [_as_bytes(value) for value in own]
        elif kind == _FLOATS:
            packed = b"".join(value if isinstance(value, bytes) else struct.pack("<I", value) for value in own)
            values = array("f", struct.unpack(f"<{len(packed) // 4}f", packed))
        elif kind == _INTEGERS:
            own_numbers = (one for value in own for one in (_varints(value) if isinstance(value, bytes) else [value]))
            values = array("q", map(_signed, own_numbers))
    return values


def _list(values: Feature) -> bytes:
    first = values[0] if values else b""
    if isinstance(first, bytes):
        return _field(_BYTES, b"".join(_field(1, value) for value in values if isinstance(value, bytes)))
    if isinstance(first, float):
        return _field(_FLOATS, _field(1, struct.pack(f"<{len(values)}f", *values)))
    return _field(_INTEGERS, _field(1, b"".join(_varint(int(value) & 2**64 - 1) for value in values)))


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield the number and value of each field of a protocol buffer message."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        if tag & 7 == _VARINT:
            value, at = _read_varint(data, at)
            yield tag >> 3, value
        elif tag & 7 == _LENGTH:
            length, at = _read_varint(data, at)
            if at + length > len(data):
                raise IndexError("it is truncated")
            yield tag >> 3, data[at : at + length]
            at += length
        elif tag & 7 in (_FIXED32, _FIXED64):
            width = 4 if tag & 7 == _FIXED32 else 8
            yield tag >> 3, int.from_bytes(data[at : at + width], "little")
            at += width
        else:
            raise TypeError(f"wire type {tag & 7}")


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise IndexError("a varint does not end")


def _varints(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _read_varint(data, at)
        yield value


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH) + _varint(len(data)) + data


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _as_bytes(value: bytes | int) -> bytes:
    if isinstance(value, int):
        raise TypeError("a number stands in the place of a message")
    return value
