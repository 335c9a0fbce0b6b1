"""Patches of `subprocess.run`, `os.system` and similar functions: a command of the program runs once, on rank 0.

Other ranks get the result of rank 0: the exit code, the output, or the error. Otherwise each rank would append to the
same log, delete the same folder or upload the same file. Each rank runs a command itself in these cases: in threads and
worker processes; while samples are read; if a library starts the command; if the output goes to an open file; if the
arguments differ from those on rank 0. `subprocess.Popen` is not patched.
"""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from paceline.inprocess import hooks
from paceline.inprocess.sandbox import write_sandbox
from paceline.train.unmodified.state import is_own_file

_POLL_S = 0.005
_NAMES = ("run", "call", "check_call", "check_output", "getoutput", "getstatusoutput")
_STREAMS = ("stdin", "stdout", "stderr")
_is_reading: list[Callable[[], bool]] = [lambda: False]


def begin(place: Mapping[str, Any]) -> None:
    """Patch the functions that start commands, so that each command runs once, on rank 0.

    Args:
        place: The position of the rank: its number and the folder that the ranks share.
    """
    shared = _Shared(os.path.join(str(place["folder"]), "command"), leads=not place["rank"])
    for owner, names in ((subprocess, _NAMES), (os, ("system",))):
        for name in names:
            hooks.install(owner, name, shared.patched(name, getattr(owner, name)))


def leave_samples(is_reading: Callable[[], bool]) -> None:
    """Run commands on every rank, not only on rank 0, while samples are read.

    Args:
        is_reading: Returns whether this rank reads samples at the moment.
    """
    _is_reading[0] = is_reading


class _Shared:
    """The commands of this rank, numbered in the order in which they start.

    Args:
        place: The prefix of the paths of files to which rank 0 writes results.
        leads: Whether this is rank 0.
    """

    def __init__(self, place: str, *, leads: bool) -> None:
        self._place, self._leads = place, leads
        self._pid, self._numbers = os.getpid(), itertools.count()

    def patched(self, name: str, original: Any) -> Any:
        """Return a replacement for a function such as `subprocess.run` that runs each command for all ranks."""

        @functools.wraps(original)
        def start(*args: Any, **kwargs: Any) -> Any:
            if not self._is_shared(sys._getframe(1).f_code.co_filename, kwargs):
                return original(*args, **kwargs)
            number = next(self._numbers)
            action = functools.partial(original, *args, **kwargs)
            return (self._led if self._leads else self._followed)(number, _digest(name, args, kwargs), action)

        return start

    def _is_shared(self, file: str, kwargs: Mapping[str, Any]) -> bool:
        in_main = os.getpid() == self._pid and threading.current_thread() is threading.main_thread()
        to_file = any(not isinstance(kwargs.get(name), int | None) for name in _STREAMS)
        return in_main and not to_file and not _is_reading[0]() and is_own_file(file)

    def _led(self, number: int, digest: str, action: Callable[[], Any]) -> Any:
        """Run a command on rank 0, and write its result or error for the other ranks."""
        outcome: tuple[bool, Any] = (False, None)
        try:
            outcome = (True, action())
        except BaseException as error:
            outcome = (False, error)
            raise
        finally:
            self._leave(number, _pickled((digest, *outcome)))
        return outcome[1]

    def _leave(self, number: int, found: bytes) -> None:
        place = f"{self._place}-{number}"
        with io.FileIO(f"{place}.new", "w") as file:
            file.write(found)
        os.rename(f"{place}.new", place)

    def _followed(self, number: int, digest: str, action: Callable[[], Any]) -> Any:
        """Return the result or raise the error of the command on rank 0; run the command here if rank 0 ran another."""
        expected, is_result, found = pickle.loads(self._left(number))
        if expected != digest:
            return action()
        write_sandbox.show_all()
        if is_result:
            return found
        raise found

    def _left(self, number: int) -> bytes:
        """Wait for the result of rank 0, and return the pickled result."""
        while True:
            try:
                with io.FileIO(f"{self._place}-{number}") as file:  # the write sandbox redirects `open` on this rank
                    return file.readall()
            except FileNotFoundError:
                time.sleep(_POLL_S)


def _pickled(outcome: tuple[str, bool, Any]) -> bytes:
    """Return an outcome pickled. If that fails, the pickled digest is empty, so that each rank runs the command."""
    try:
        found = pickle.dumps(outcome)
        pickle.loads(found)
    except Exception:
        return pickle.dumps(("", False, None))
    return found


def _digest(name: str, args: Any, kwargs: Mapping[str, Any]) -> str:
    given = sorted((key, value) for key, value in kwargs.items() if key != "env")  # which contains the rank
    text = repr((name, args, given, os.getcwd()))
    return hashlib.sha1(text.encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()
