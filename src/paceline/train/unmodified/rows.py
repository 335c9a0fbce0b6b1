"""How are rows dealt out? Of B rows over n ranks, rank p has rows p B / n to (p + 1) B / n; pure functions."""

from __future__ import annotations

from collections.abc import Sequence


def bounds(rows: int, ranks: int, rank: int) -> tuple[int, int]:
    """Return the first row of a rank, and the first behind its part."""
    return rank * rows // ranks, (rank + 1) * rows // ranks


def sizes(rows: int, ranks: int) -> list[int]:
    """Return how many rows each rank has: all as many, or one more."""
    return [bounds(rows, ranks, rank)[1] - bounds(rows, ranks, rank)[0] for rank in range(ranks)]


def times(parts: Sequence[int], own: int, found: int) -> int | None:
    """Return how many rows of an output come from one row of the input; None: it is not made of rows.

    Args:
        parts: Rows of each rank.
        own: Rows that this rank has given.
        found: Rows of what has come out.
    """
    return found // own if own and found and found % own == 0 else None
