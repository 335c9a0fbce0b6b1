"""Do the ranks wait for each other without end? A thread looks, and ends the program with the lines at which they wait.

All ranks run one program, so that each comes to the same exchanges. If a decision differs between ranks (by the time,
say), one rank waits for an exchange that the others never come to. The thread samples the stack of the main thread once
a second. If all ranks have waited in exchanges for some samples, and nothing has moved, no rank can go on.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from paceline.train.unmodified.snapshot import is_own_file
from paceline.train.unmodified.state import Spread

_EVERY_S = 1.0
_FEWEST = 3  # samples, before a rank tells the others
_OLD_S = 5.0  # of what another rank has written
_MOST_AT_OTHER_LINES = 12  # samples: ranks that wait at other lines can never meet
_MOST_AT_ONE_LINE = 300  # a large exchange takes its time
_WAITS_IN = ("torch.distributed", *(f"paceline.train.unmodified.{name}" for name in ("exchange", "gradients", "drift")))
_MOST_LINES = 8


@dataclass(frozen=True)
class Wait:
    """What a rank waits for.

    Attributes:
        lines: Of the program, innermost first.
        exchange: How many exchanges the rank has begun, and the functions that wait.
        samples: How often nothing had moved.
        at: When this was written, in seconds.
    """

    lines: tuple[str, ...]
    exchange: str
    samples: int
    at: float

    @property
    def line(self) -> str:
        """The innermost line of the program."""
        return self.lines[0] if self.lines else "the end of the program"


def begin(spread: Spread, exchanges: Callable[[], int]) -> None:
    """Look after this rank from now on; `exchanges` returns how many it has begun."""
    threading.Thread(target=_Watch(spread, exchanges).run, daemon=True, name="paceline-waiting").start()


def verdict(waits: Sequence[Wait | None], now_s: float) -> str:
    """Return why the ranks cannot go on, or nothing.

    Args:
        waits: Of each rank; None: it does not wait.
        now_s: The time.
    """
    known = [wait for wait in waits if wait is not None and now_s - wait.at < _OLD_S]
    if len(known) < len(waits):
        return ""
    apart = len({(wait.lines, wait.exchange) for wait in known}) > 1
    if min(wait.samples for wait in known) < (_MOST_AT_OTHER_LINES if apart else _MOST_AT_ONE_LINE):
        return ""
    places = ", ".join(f"rank {rank} at {wait.line}" for rank, wait in enumerate(known))
    return (
        f"the ranks wait for each other without end ({places}); the program went another way on one of them, because a "
        "decision depends on the time, the process or unseeded random numbers; make it the same on all ranks"
    )


class _Watch:
    """Looks at the main thread of one rank."""

    def __init__(self, spread: Spread, exchanges: Callable[[], int]) -> None:
        self._spread, self._exchanges = spread, exchanges
        self._main, self._pid = threading.main_thread(), os.getpid()
        place = os.path.join(spread.folder, "waits")
        self._store = spread.torch.distributed.FileStore(place, spread.ranks)  # files of ours would be redirected
        self._before: Any = None
        self._samples = 0

    def run(self) -> None:
        """Look until the program ends."""
        while os.getpid() == self._pid and self._main.is_alive():
            time.sleep(_EVERY_S)
            with suppress(OSError, ValueError, RuntimeError):
                self._look()

    def _look(self) -> None:
        wait = self._waits()
        if wait is None or wait.samples < _FEWEST:
            return
        self._store.set(str(self._spread.rank), json.dumps(asdict(wait)))
        why = verdict([self._read(rank) for rank in range(self._spread.ranks)], time.time())
        if why:
            time.sleep(0 if self._spread.leads else 2 * _EVERY_S)  # rank 0 says so
            self._spread.refuse(why)

    def _waits(self) -> Wait | None:
        frame = sys._current_frames().get(self._main.ident or 0)
        if frame is None or self._spread.off or not _is_exchange(frame):
            self._before = None
            return None
        here = (id(frame), frame.f_lasti, _cpu_ticks(self._main.native_id) // 10)
        self._samples = self._samples + 1 if here == self._before else 0
        self._before = here
        return Wait(_lines(frame), f"{self._exchanges()} {_names(frame)}", self._samples, time.time())

    def _read(self, rank: int) -> Wait | None:
        if not self._store.check([str(rank)]):
            return None
        found = json.loads(self._store.get(str(rank)))
        return Wait(tuple(found["lines"]), str(found["exchange"]), int(found["samples"]), float(found["at"]))


def _is_exchange(frame: FrameType | None) -> bool:
    """Return whether the innermost frame, the recorder's aside, exchanges something with other ranks."""
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("paceline.observe"):
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__", "")).startswith(_WAITS_IN)


def _lines(frame: FrameType | None) -> tuple[str, ...]:
    found: list[str] = []
    while frame is not None and len(found) < _MOST_LINES:
        name = frame.f_code.co_filename
        if is_own_file(name):
            found.append(f"{os.path.basename(name)}:{frame.f_lineno}")
        frame = frame.f_back
    return tuple(found)


def _names(frame: FrameType | None) -> str:
    found: list[str] = []
    while frame is not None and len(found) < _MOST_LINES:
        found.append(frame.f_code.co_name)
        frame = frame.f_back
    return " ".join(found)


def _cpu_ticks(thread: int | None) -> int:
    """Return the CPU time of a thread in clock ticks; 0 where it is not known."""
    try:
        fields = Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])
