"""Patches of `os.listdir` and `os.scandir`: all ranks list the names in a folder in the order of rank 0.

A file system lists names in no particular order, and ranks other than 0 see the folders that they write to through the
write sandbox. Rank 0 writes the order of each listing to a file. When another rank lists the same names for the n-th
time, it takes the n-th order for these names. Listings while samples are read are unchanged, as only one rank reads a
sample.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.inprocess import hooks
from paceline.inprocess.sandbox.path_mapping import Entries

_WAIT_S = 10.0  # for rank 0 to list the same names
_SHORT_WAIT_S = 0.2  # after `_MOST_WAITS` waits without a result
_MOST_WAITS = 3
_POLL_S = 0.005
_NOT_ORDERED = ("/proc", "/sys", "/dev")
_is_reading: list[Callable[[], bool]] = [lambda: False]


def begin(place: Mapping[str, Any]) -> None:
    """Patch `os.listdir` and `os.scandir`, so that this rank gets names in the order of rank 0.

    Args:
        place: The position of the rank: its number and the folder that the ranks share.
    """
    file = os.path.join(str(place["folder"]), "listings")
    ordered = _Noting(file) if int(place["rank"]) == 0 else _Following(file)
    ours = (str(place["folder"]), os.environ.get("PACELINE_WATCH_DIR") or str(place["folder"]), *_NOT_ORDERED)
    pid, listdir, scandir = os.getpid(), os.listdir, os.scandir

    def applies(path: Any) -> bool:
        if os.getpid() != pid or threading.current_thread() is not threading.main_thread() or _is_reading[0]():
            return False
        return isinstance(path, int) or not f"{os.path.abspath(os.fsdecode(path))}/".startswith(
            tuple(f"{each}/" for each in ours)
        )

    @functools.wraps(listdir)
    def list_(path: Any = None) -> Any:
        names = listdir(path) if path is not None else listdir()
        if len(names) < 2 or not applies("." if path is None else path):
            return names
        by_name = {os.fsdecode(name): name for name in names}
        return [by_name[name] for name in ordered.order(list(by_name))]

    @functools.wraps(scandir)
    def scan(path: Any = None) -> Any:
        path = "." if path is None else path
        if not applies(path):
            return scandir(path)
        with scandir(path) as found:
            by_name = {os.fsdecode(entry.name): entry for entry in found}
        names = ordered.order(list(by_name)) if len(by_name) > 1 else list(by_name)
        return Entries([by_name[name] for name in names])

    hooks.install(os, "listdir", list_)
    hooks.install(os, "scandir", scan)


def leave_samples(is_reading: Callable[[], bool]) -> None:
    """Leave listings unchanged while samples are read.

    Args:
        is_reading: Returns whether this rank reads samples at the moment.
    """
    _is_reading[0] = is_reading


class _Noting:
    """Writes the order of each listing on rank 0 to a file.

    Args:
        file: The path of the file. Each line has a digest of the names, and the index of each name in the sorted names.
    """

    def __init__(self, file: str) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def order(self, names: Sequence[str]) -> Sequence[str]:
        """Write the order of the names to the file, and return the names unchanged."""
        place = {name: number for number, name in enumerate(sorted(names))}
        line = f"{_digest(names)} {json.dumps([place[name] for name in names])}\n".encode()
        while line:
            line = line[os.write(self._file, line) :]
        return names


class _Following:
    """Reads the orders that rank 0 wrote, on another rank."""

    def __init__(self, file: str) -> None:
        self._file, self._read, self._waits = file, 0, 0
        self._orders: defaultdict[str, deque[list[int]]] = defaultdict(deque)

    def order(self, names: Sequence[str]) -> Sequence[str]:
        """Return the names in the order of rank 0; unchanged if rank 0 does not list them before the time limit."""
        digest, by_place = _digest(names), sorted(names)
        deadline = time.monotonic() + (_WAIT_S if self._waits < _MOST_WAITS else _SHORT_WAIT_S)
        while not self._orders[digest]:
            self._read_on()
            if self._orders[digest]:
                break
            if time.monotonic() > deadline:
                self._waits += 1
                return names
            time.sleep(_POLL_S)
        return [by_place[place] for place in self._orders[digest].popleft()]

    def _read_on(self) -> None:
        try:
            with io.FileIO(self._file) as file:  # the write sandbox redirects `open` on this rank
                file.seek(self._read)
                text = file.readall()
        except FileNotFoundError:
            return
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            digest, _, order = line.decode().partition(" ")
            self._orders[digest].append(json.loads(order))


def _digest(names: Sequence[str]) -> str:
    text = "\0".join(sorted(names)).encode("utf-8", "surrogateescape")
    return hashlib.sha1(text, usedforsecurity=False).hexdigest()
