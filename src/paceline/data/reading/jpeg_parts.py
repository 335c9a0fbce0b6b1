"""The bytes of a part of each JPEG of a batch: rows of intervals, one after the other, with new restart markers.

For all pictures at once: one by one, this takes several times as long, as much as decoding a small picture.
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
    """Parts of pictures that can be put together without decoding the rest; lists of one element a picture."""

    cut: list[bool]  # whether a part of this picture can be; all else is without meaning where not
    tops: list[int]  # where the box is in the part, in pixels
    lefts: list[int]
    pixels: list[int]  # of the part, in whole intervals
    sizes: list[bytes]  # height and width, as they stand in the header
    heads: list[tuple[int, int]]  # where the height stands in the whole file, and where the picture begins
    rows: list[int]  # the first row of intervals of each picture, in the two lists that follow; and of all
    begins: list[int]  # of rows of intervals, in the whole file
    ends: list[int]
    intervals: list[int]  # the first interval of each picture, in the array that follows; and of all
    marks: Numbers  # where the number of the marker behind each interval stands, in the part

    def alone(self, picture: int, data: memoryview) -> bytearray:
        """Return a part as a picture of its own: the same header with another size, its bytes, its markers numbered.

        Args:
            picture: Its place in the batch.
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
    """Rectangles of intervals: rows and columns, each the first and the first after the last; and sizes in pixels."""

    across: Numbers  # intervals of a row of the whole picture
    top: Numbers
    bottom: Numbers
    left: Numbers
    right: Numbers
    high: Numbers  # of an interval
    wide: Numbers
    cut: NDArray[np.bool_]


def parts_of(frames: JpegFrame[Numbers], offsets: Sequence[Offsets], boxes: Boxes, *, beyond: bool) -> Parts:
    """Find what has to be decoded for a box of each picture.

    Args:
        frames: Of the whole pictures, arrays of one number a picture.
        offsets: Of each, as `intervals_of` gives them; empty where it cannot be cut.
        boxes: What is wanted.
        beyond: Whether one interval more is needed on each side, for what is beyond the borders counts.
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
    """Return the intervals that parts need; `known` offsets have to be as many as intervals, and one."""
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
    """Return where rows of intervals begin and end, how many intervals each picture has, and where markers will be."""
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
    """Return for so many of each whose it is, and which of them: [2, 1] gives [0, 0, 1] and [0, 1, 0]."""
    whose = np.repeat(np.arange(len(counts)), counts)
    return whose, np.arange(len(whose)) - (np.cumsum(counts) - counts)[whose]
