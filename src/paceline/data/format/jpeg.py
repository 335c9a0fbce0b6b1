"""Restart markers of a JPEG, which allow a crop to decode only the blocks that it needs.

A restart marker (ITU-T T.81, B.1.1.3 and F.1.1.5.2) ends an interval of blocks whose coding does not depend on earlier
blocks. If each row of blocks has whole intervals of equal length, any rectangle of intervals is a valid image: the same
header with another size, the bytes of the intervals in order with renumbered markers, and an end marker. Nothing is
recoded, and every pixel equals that of the whole image, unless chroma is smoothed over the borders of blocks ("fancy"
upsampling uses one more pixel).
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from math import log
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Offsets = NDArray[np.int32]
_START, END = b"\xff\xd8", b"\xff\xd9"
_SOF_SEQUENTIAL, _SOF_PROGRESSIVE, _SOF_OTHERS = {0xC0, 0xC1}, {0xC2}, set(range(0xC3, 0xD0)) - {0xC4, 0xC8, 0xCC}
_DRI, _SOS = 0xDD, 0xDA
_ALONE = {0x01, *range(0xD0, 0xD9)}  # markers without a length
_FIRST_RESTART = 0xD0
RESTARTS = bytes(range(_FIRST_RESTART, _FIRST_RESTART + 8))  # the second bytes of restart markers, in order
_WANTED, _MOST = 3, 8  # units of an interval: preferred and most
_BLOCK = 8  # lines of pixels in a block of coefficients
_COEFFICIENTS = 64  # of a block
_NEXT_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # after the data of a scan


class NotAJpeg(ValueError):
    """The bytes are no JPEG, or end before the image data."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """The header of a JPEG, before the image data."""

    width: int  # pixels
    height: int
    components: int
    progressive: bool
    unit_width: int  # pixels of a unit (MCU): the blocks that are coded together
    unit_height: int
    interval: int  # units between two restart markers; 0 without markers
    height_at: int  # the byte offset of the height
    body_at: int  # the byte offset of the image data
    scans: int  # 1 if the first scan has all components

    @property
    def units_wide(self) -> int:
        """The number of units in a row."""
        return -(-self.width // self.unit_width)

    @property
    def units_high(self) -> int:
        """The number of rows of units."""
        return -(-self.height // self.unit_height)

    @property
    def is_cut(self) -> bool:
        """Whether parts can be cut out: each row of units has whole intervals, in one baseline scan."""
        whole = self.interval > 0 and self.units_wide % self.interval == 0
        return whole and not self.progressive and self.scans == 1 and self.height > 0

    @property
    def frame(self) -> JpegFrame[int]:
        """The values that are needed to cut parts out of the image."""
        return JpegFrame(
            self.width, self.height, self.unit_width * self.interval, self.unit_height, self.height_at, self.body_at
        )


T = TypeVar("T")


class JpegFrame(NamedTuple, Generic[T]):
    """Values to cut parts out of one image (integers) or of many (arrays); sizes are in pixels."""

    width: T
    height: T
    interval_width: T
    interval_height: T
    height_at: T  # the byte offset of the height; the width follows
    body_at: T  # the byte offset of the image data


def header_of(data: bytes | memoryview) -> Header:
    """Read the header of a JPEG.

    Raises:
        NotAJpeg: The bytes are no JPEG, are truncated, or use a coding that no common decoder reads.
    """
    if bytes(data[:2]) != _START:
        raise NotAJpeg("it does not begin with a JPEG marker")
    at, interval, frame = 2, 0, None
    while True:
        marker, begin, end = _segment(data, at)
        if marker in _SOF_OTHERS:
            raise NotAJpeg(f"its coding, SOF{marker - 0xC0}, is neither baseline nor progressive")
        if marker in _SOF_SEQUENTIAL | _SOF_PROGRESSIVE:
            frame = (marker, begin, _frame(data, begin, end))
        elif marker == _DRI:
            (interval,) = struct.unpack_from(">H", data, begin)
        elif marker == _SOS:
            break
        at = end
    if frame is None:
        raise NotAJpeg("its image data begins before its size is given")
    kind, frame_at, (height, width, samplings) = frame
    across, down = max(h for h, _ in samplings), max(v for _, v in samplings)
    if len(samplings) == 1:
        across = down = 1  # blocks of a single component are coded one by one
    return Header(
        width=width,
        height=height,
        components=len(samplings),
        progressive=kind in _SOF_PROGRESSIVE,
        unit_width=_BLOCK * across,
        unit_height=_BLOCK * down,
        interval=interval,
        height_at=frame_at + 1,
        body_at=end,
        scans=1 if data[begin] == len(samplings) else len(samplings),
    )


def best_interval(header: Header) -> int:
    """Return the best number of units of an interval: it divides a row, and is close to 3 to keep crops cheap."""
    divisors = [units for units in range(1, _MOST + 1) if header.units_wide % units == 0]
    return min(divisors, key=lambda units: abs(log(units / _WANTED)))


def intervals_of(data: bytes, header: Header) -> Offsets | None:
    """Return the byte offset of each interval and the end of the last, or None if parts cannot be cut out.

    An interval includes its restart marker; the last one includes the end marker of the image.
    """
    if not header.is_cut:
        return None
    end = data.rfind(END)
    if end < header.body_at:
        return None
    body = np.frombuffer(data, np.uint8, end - header.body_at, header.body_at)
    marked = np.flatnonzero(body[:-1] == 0xFF)
    second = body[marked + 1]
    restarts = marked[(second >= _FIRST_RESTART) & (second < _FIRST_RESTART + len(RESTARTS))]
    if len(restarts) != header.units_high * header.units_wide // header.interval - 1:
        return None
    return (np.concatenate([[0], restarts + 2, [end - header.body_at + 2]]) + header.body_at).astype(np.int32)


def has_all_bits(data: bytes) -> bool:
    """Return whether the scans of a progressive JPEG give each coefficient of each component all of its bits.

    Decoders smooth a progressive image without its last scans (ITU-T T.81, K.8), and no image with another coding.

    Raises:
        NotAJpeg: The bytes are no JPEG, or end within a header.
    """
    at, missing = len(_START), dict[int, NDArray[np.int8]]()  # the missing bits, by the id of a component
    while data[at : at + 2] != END:
        marker, begin, at = _segment(data, at)
        if marker in _SOF_PROGRESSIVE:
            count = len(_frame(data, begin, at)[2])
            missing = {data[begin + 6 + 3 * i]: np.ones(_COEFFICIENTS, np.int8) for i in range(count)}
        elif marker == _SOS:
            first, last, bits = data[at - 3 : at]
            for one in set(data[begin + 1 : at - 3 : 2]) & set(missing):
                missing[one][first : last + 1] = bits & 15
            found = _NEXT_MARKER.search(data, at)
            at = found.start() if found else len(data)
    return not any(one.any() for one in missing.values())


def _segment(data: bytes | memoryview, at: int) -> tuple[int, int, int]:
    """Return the marker at a byte offset, and the start and end of its segment."""
    try:
        while data[at] == 0xFF and data[at + 1] == 0xFF:
            at += 1  # fill bytes
        if data[at] != 0xFF:
            raise NotAJpeg(f"there is no marker at byte {at}, where one is required")
        marker = data[at + 1]
        if marker in _ALONE:
            return marker, at + 2, at + 2
        (length,) = struct.unpack_from(">H", data, at + 2)
        if length < 2 or at + 2 + length > len(data):
            raise NotAJpeg(f"it ends before its image data, at byte {at}")
    except (IndexError, struct.error) as error:
        raise NotAJpeg("it ends before its image data") from error
    return marker, at + 4, at + 2 + length


def _frame(data: bytes | memoryview, begin: int, end: int) -> tuple[int, int, list[tuple[int, int]]]:
    """Return the height, the width and the sampling factors (horizontal, vertical) of each component."""
    try:
        _, height, width, count = struct.unpack_from(">BHHB", data, begin)
        samplings = [(data[begin + 7 + 3 * i] >> 4, data[begin + 7 + 3 * i] & 15) for i in range(count)]
    except (IndexError, struct.error) as error:
        raise NotAJpeg("its frame header is truncated") from error
    if not samplings or begin + 6 + 3 * count > end or not width or not all(h and v for h, v in samplings):
        raise NotAJpeg(f"its header says {width} x {height} pixels with {count} components")
    return height, width, samplings
