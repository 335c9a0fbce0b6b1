"""Cropping of JPEGs without decoding: the restart intervals that cover a box, joined with new restart markers.

All images of a batch are computed at once. One by one, this would take several times as long, about as long as decoding
a small image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.data.format.jpeg import END, RESTARTS, JpegFrame, Offsets
from paceline.data.reading.crops import Boxes

Numbers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """Parts of JPEGs that can be decoded without the rest; the lists have one element for each image."""

    cut: list[bool]  # whether the image can be cut; if not, its other values are meaningless
    tops: list[int]  # the position of the box in the part, in pixels
    lefts: list[int]
    pixels: list[int]  # the number of pixels of the part, which has whole intervals
    sizes: list[bytes]  # height and width as bytes of the header
    heads: list[tuple[int, int]]  # byte offsets of the height and of the image data in the file
    rows: list[int]  # the first entry of each image in `begins` and `ends`, and their length
    begins: list[int]  # byte offsets of each row of intervals in the file
    ends: list[int]
    intervals: list[int]  # the first entry of each image in `marks`, and its length
    marks: Numbers  # byte offsets in the part's file: the byte that numbers each marker

    def alone(self, picture: int, data: memoryview) -> bytearray:
        """Return a part as a JPEG file: the header with the part's size, and its intervals with renumbered markers.

        Args:
            picture: The index of the image in the batch.
            data: The whole file.
        """
        height_at, body_at = self.heads[picture]
        first, last = self.rows[picture], self.rows[picture + 1]
        rows = zip(self.begins[first:last], self.ends[first:last], strict=True)
        made = bytearray().join([data[:body_at], *[data[begin:end] for begin, end in rows]])
        marks = self.marks[self.intervals[picture] : self.intervals[picture + 1]]
        np.frombuffer(made, np.uint8)[marks] = _numbered(len(marks))
        made[-1] = END[1]
        made[height_at : height_at + 4] = self.sizes[picture]
        return made


_NUMBERED = np.resize(np.frombuffer(RESTARTS, np.uint8), 4096)


def _numbered(count: int) -> NDArray[np.uint8]:
    return _NUMBERED[:count] if count <= len(_NUMBERED) else np.resize(_NUMBERED, count)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Cuts:
    """Rectangles of intervals: half-open ranges of rows and columns, and the size of intervals; an entry per image."""

    across: Numbers  # intervals in a row of the whole image
    top: Numbers
    bottom: Numbers
    left: Numbers
    right: Numbers
    high: Numbers  # the size of an interval, in pixels
    wide: Numbers
    cut: NDArray[np.bool_]


def parts_of(frames: JpegFrame[Numbers], offsets: Sequence[Offsets], boxes: Boxes, *, beyond: bool) -> Parts:
    """Find the part of each JPEG that must be decoded for its box.

    Args:
        frames: The headers of the images; arrays with one number for each image.
        offsets: The byte offsets of each image's intervals, from `intervals_of`; empty if the image cannot be cut.
        boxes: The boxes.
        beyond: Whether to add one interval on each side, for decoders that use pixels beyond the box.
    """
    cuts = _cuts(frames, np.array(list(map(len, offsets)), np.int64), boxes, int(beyond))
    rows = np.where(cuts.cut, cuts.bottom - cuts.top, 0)
    begins, ends, intervals, marks = _placed(cuts, frames.body_at, rows, offsets)
    height = np.minimum(frames.height, cuts.bottom * cuts.high) - cuts.top * cuts.high
    width = np.minimum(frames.width, cuts.right * cuts.wide) - cuts.left * cuts.wide
    sizes = np.stack([height, width], axis=1).astype(">u2")
    return Parts(
        cut=cuts.cut.tolist(),
        tops=(boxes.top - cuts.top * cuts.high).tolist(),
        lefts=(boxes.left - cuts.left * cuts.wide).tolist(),
        pixels=((cuts.bottom - cuts.top) * cuts.high * (cuts.right - cuts.left) * cuts.wide).tolist(),
        sizes=[one.tobytes() for one in sizes],
        heads=list(zip(frames.height_at.tolist(), frames.body_at.tolist(), strict=True)),
        rows=[0, *np.cumsum(rows).tolist()],
        begins=begins.tolist(),
        ends=ends.tolist(),
        intervals=[0, *np.cumsum(intervals).tolist()],
        marks=marks,
    )


def _cuts(frames: JpegFrame[Numbers], known: Numbers, boxes: Boxes, more: int) -> _Cuts:
    """Return the intervals that cover each box; an image is cut only if its `known` offsets are complete."""
    high, wide = np.maximum(frames.interval_height, 1), np.maximum(frames.interval_width, 1)
    down, across = -(-frames.height // high), -(-frames.width // wide)
    return _Cuts(
        across=across,
        top=np.maximum(0, boxes.top // high - more),
        bottom=np.minimum(down, -(-(boxes.top + boxes.height) // high) + more),
        left=np.maximum(0, boxes.left // wide - more),
        right=np.minimum(across, -(-(boxes.left + boxes.width) // wide) + more),
        high=high,
        wide=wide,
        cut=(known > 1) & (known == down * across + 1),
    )


def _placed(
    cuts: _Cuts, body_at: Numbers, rows: Numbers, offsets: Sequence[Offsets]
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Return the start and end of each row of intervals, each image's number of intervals, and marker positions."""
    lengths = np.array(list(map(len, offsets)), np.int64)
    all_offsets = np.concatenate(offsets).astype(np.int64, copy=False) if len(offsets) else np.empty(0, np.int64)
    picture, row = _counted(rows)
    at = (np.cumsum(lengths) - lengths)[picture] + (cuts.top[picture] + row) * cuts.across[picture]
    columns = (cuts.right - cuts.left)[picture]
    begins, ends = all_offsets[at + cuts.left[picture]], all_offsets[at + cuts.right[picture]]
    before = np.append(0, np.cumsum(ends - begins))  # bytes of the rows before
    firsts = np.cumsum(rows) - rows
    moved = before[:-1] - before[firsts][picture] + body_at[picture] - 1 - begins
    of_row, column = _counted(columns)
    marks = all_offsets[(at + cuts.left[picture] + 1)[of_row] + column] + moved[of_row]
    return begins, ends, rows * (cuts.right - cuts.left), marks


def _counted(counts: Numbers) -> tuple[Numbers, Numbers]:
    """Return the owner and index of each item, given each owner's count: [2, 1] gives [0, 0, 1] and [0, 1, 0]."""
    whose = np.repeat(np.arange(len(counts)), counts)
    return whose, np.arange(len(whose)) - (np.cumsum(counts) - counts)[whose]
