"""Where does a reader without a `DataLoader` make its batches: in the training thread, or behind it?

Stack samples of making the input that stand in Python's own waiting for a thread or a process show a reader that only
fetches what others made.
"""

from __future__ import annotations

from paceline.explain.breakdown import hot_functions
from paceline.explain.model import HotFunction
from paceline.record.run import Rank

_INPUT = {"gap": ("input",), "other": ("input",)}
_WAITING = ("threading.py:", "queue.py:", "queues.py:", "connection.py:", "selectors.py:", "synchronize.py:")
_FEW = 8  # samples below which nothing is said


def readers(rank: Rank) -> list[HotFunction]:
    """Return the user's functions seen most often in making the input."""
    return hot_functions(rank, _INPUT)


def made_behind(rank: Rank) -> bool:
    """Say whether the training thread waits for a thread or process of the program's own to make the input."""
    entries = [e for e in rank.summary.get("hot", ()) if e["side"] in _INPUT.get(e["slot"], ())]
    waiting: int = sum(e["count"] for e in entries if any(f"({name}" in (e["leaf"] or "") for name in _WAITING))
    total: int = sum(e["count"] for e in entries)
    return total >= _FEW and waiting > total / 2
