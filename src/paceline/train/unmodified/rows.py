"""The split of B rows over n ranks: rank p has the rows from p B / n up to (p + 1) B / n, rounded down."""

from __future__ import annotations

from collections.abc import Sequence


def bounds(rows: int, ranks: int, rank: int) -> tuple[int, int]:
    """Return the rows of a rank as a half-open range: the first row and the end."""
    return rank * rows // ranks, (rank + 1) * rows // ranks


def sizes(rows: int, ranks: int) -> list[int]:
    """Return the number of rows of each rank; the numbers differ by at most one."""
    return [bounds(rows, ranks, rank)[1] - bounds(rows, ranks, rank)[0] for rank in range(ranks)]


def times(parts: Sequence[int], own: int, found: int) -> int | None:
    """Return how many rows of an output belong to one row of the input, or None if that is no whole number.

    Args:
        parts: The number of rows of each rank.
        own: The number of input rows on this rank.
        found: The size of the output's first dimension.
    """
    return found // own if own and found and found % own == 0 else None
