"""A long run is read in stretches: rows that follow one another, evenly placed from the first step to the last.

Medians, shares and trends of some hundred thousand steps are as good as those of millions. Rows that follow one
another keep what comes every n-th step. Memory and time of a report then do not depend on the length of a run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paceline.record.run import Rows

MOST_ROWS = 200_000  # of all ranks of a run together
LEAST_ROWS = 1_024  # of one rank
_STRETCHES = 64
_LEAST_STRETCH = 128
_CHUNK_ROWS = 1 << 16


def rows_in(path: Path, row_type: np.dtype[Any]) -> int:
    """Return how many whole rows a file holds; 0 if there is no file."""
    try:
        return os.stat(path).st_size // row_type.itemsize
    except OSError:
        return 0


def rows_of_each(processes: int) -> int:
    """Return the largest number of step rows to read per process, so that all processes stay within the limit."""
    return max(LEAST_ROWS, MOST_ROWS // max(1, processes))


def stretches(count: int, most: int) -> list[tuple[int, int]]:
    """Return the first and the last number (exclusive) of the stretches of rows to read; one if all are read."""
    if count <= most:
        return [(0, count)]
    number = max(2, min(_STRETCHES, most // _LEAST_STRETCH))
    length = most // number
    starts = np.linspace(0, count - length, number).astype(np.int64)
    return [(int(start), int(start) + length) for start in starts]


def read_stretches(path: Path, row_type: np.dtype[Any], parts: Sequence[tuple[int, int]]) -> Rows:
    """Read some stretches of rows."""
    with open(path, "rb") as file:
        read = []
        for start, end in parts:
            file.seek(start * row_type.itemsize)
            read.append(np.frombuffer(file.read((end - start) * row_type.itemsize), row_type))
    return np.concatenate(read)


def chunks(path: Path, row_type: np.dtype[Any]) -> Iterator[Rows]:
    """Yield all whole rows of a file, some at a time."""
    with open(path, "rb") as file:
        while data := file.read(_CHUNK_ROWS * row_type.itemsize):
            yield np.frombuffer(data[: len(data) - len(data) % row_type.itemsize], row_type)
