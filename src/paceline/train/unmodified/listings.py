"""One order of the names in a folder on all ranks: the order that rank 0 sees, which is that of one process.

A file system lists names in no particular order, and other ranks see folders to which they write through an overlay.
Rank 0 notes the order of each folder that it lists. Another rank that lists the same names for the n-th time takes the
n-th order. Samples are read by one rank each, so that listings within them are left as they are.
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
_SHORT_WAIT_S = 0.2  # after some waits in vain
_MOST_WAITS = 3
_POLL_S = 0.005
_NOT_ORDERED = ("/proc", "/sys", "/dev")
_is_reading: list[Callable[[], bool]] = [lambda: False]


def begin(place: Mapping[str, Any]) -> None:
    """Order what this rank lists from now on."""
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
    """Leave listings as they are while samples are read.

    Args:
        is_reading: Whether this rank reads samples at the moment.
    """
    _is_reading[0] = is_reading


class _Noting:
    """Rank 0: writes orders down.

    Args:
        file: One line for each listing: a digest of the names, and their order as places in the sorted names.
    """

    def __init__(self, file: str) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def order(self, names: Sequence[str]) -> Sequence[str]:
        """Note the order of names, and return them."""
        place = {name: number for number, name in enumerate(sorted(names))}
        line = f"{_digest(names)} {json.dumps([place[name] for name in names])}\n".encode()
        while line:
            line = line[os.write(self._file, line) :]
        return names


class _Following:
    """Another rank: takes the order of rank 0."""

    def __init__(self, file: str) -> None:
        self._file, self._read, self._waits = file, 0, 0
        self._orders: defaultdict[str, deque[list[int]]] = defaultdict(deque)

    def order(self, names: Sequence[str]) -> Sequence[str]:
        """Return names in the order in which rank 0 has listed them; as they are where it does not list them."""
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
            with io.FileIO(self._file) as file:  # `open` leads elsewhere on this rank
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
