"""Ends all ranks of a run when one fails, with one error message.

Each rank has a thread with its own connection to the store that the launcher or rank 0 keeps. The first rank
that ends by an error records itself there and prints the error. The other ranks, whose collectives fail as a
consequence, print nothing and end. The thread of a rank ends its process if the rank waits in a collective that
can never finish.
"""

from __future__ import annotations

import atexit
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from paceline.core.errors import PacelineError
from paceline.train.ranks.open_files import write_files

_KEY = "paceline/failed"
_LOOK_S = 0.5  # how often a rank looks whether another one failed
_GRACE_S = 2.0  # for a rank to end by itself
_GOES_S = 1.0  # a process that was killed closes its connections first, and is seen as ended a little later
_TIMED_OUT = re.compile(r"(?:Timed out waiting |Timeout\(ms\)=)(\d+)")  # of Gloo and NCCL, in ms
_explaining: list[Callable[[BaseException], PacelineError | None]] = []
_LOST = ("closed by peer", "Connection reset", "Broken pipe", "remote process exited", "Socket closed")


def watch(rank: int) -> None:
    """Report errors of this rank to all ranks, and end this rank when another one fails. A second call does nothing.

    Args:
        rank: The rank of this process. The default process group must exist.
    """
    import torch

    if isinstance(getattr(sys.excepthook, "__self__", None), _Rank):
        return
    store = torch.distributed.distributed_c10d._get_default_store()
    known = _Rank(rank, int(torch.distributed.get_world_size()), store.clone(), sys.excepthook)
    sys.excepthook = known.ends_by_error
    thread = threading.Thread(target=known.look, args=(store.clone(),), name="paceline-failures", daemon=True)
    thread.start()
    atexit.register(_rest, known.done, thread)


def explain_by(explain: Callable[[BaseException], PacelineError | None]) -> None:
    """Replace errors that end this process by others.

    Args:
        explain: Returns an error with a way out for an error of torch, and None for others. It replaces an earlier one.
    """
    _explaining[:] = [explain]


def _rest(done: threading.Event, thread: threading.Thread) -> None:
    """Stop the thread before the interpreter ends."""
    done.set()
    thread.join(_GRACE_S)


class _Rank:
    """Reports failures of this rank and ends it when another one fails."""

    def __init__(self, rank: int, ranks: int, store: Any, earlier: Callable[..., Any]) -> None:
        self.done = threading.Event()
        self._rank = rank
        self._ranks = ranks
        self._store = store
        self._earlier = earlier
        store.set(f"paceline/rank/{rank}", f"{socket.gethostname()} {os.getpid()}")

    def ends_by_error(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Replacement of `sys.excepthook`: end this process, and print the error if this rank is the first to fail."""
        explained = next((found for explain in _explaining if (found := explain(error)) is not None), error)
        ours = isinstance(explained, PacelineError)
        if self._claims():
            if not ours:
                self._earlier(kind, error, trace)
            self._say(str(explained) if ours else self._why(error))
        else:
            self.done.wait(
                _GRACE_S / 2
            )  # a launcher ends all ranks as soon as one ends, so let the first one print before
        sys.stdout.flush()
        write_files()
        os._exit(explained.exit_code if isinstance(explained, PacelineError) else 1)

    def look(self, store: Any) -> None:
        """Wait until another rank has failed, then end this process if it does not end by itself."""
        try:
            while not self.done.wait(_LOOK_S):
                if store.check([_KEY]):
                    break
            else:
                return
        except RuntimeError:
            return  # the store has ended, so collectives fail by themselves
        if not self.done.wait(_GRACE_S):
            write_files()
            os._exit(1)

    def _claims(self) -> bool:
        """Return whether this rank is the first to fail.

        If the store has gone with rank 0, rank 1 counts as the first.
        """
        try:
            return bool(self._store.compare_set(_KEY, "", str(self._rank)) == str(self._rank).encode())
        except RuntimeError:
            return self._rank == 1

    def _why(self, error: BaseException) -> str:
        """Say what ended the run."""
        waited = _TIMED_OUT.search(str(error))
        if waited:
            return (
                f"waited {int(waited[1]) / 1000:g} s for another rank, the limit (process_group.timeout_s, "
                "--timeout-s): a rank is slow, or waits elsewhere; all ranks end"
            )
        if not any(words in str(error) for words in _LOST):
            return "failed with the error above; all ranks end"
        gone = ", ".join(str(rank) for rank in self._gone())
        who = f"rank {gone}" if gone else "another rank"  # the rank was on another machine
        return f"{who} ended without an error (killed, out of memory, or exited early); all ranks end"

    def _gone(self) -> list[int]:
        """Return the ranks of this machine that have ended; wait up to `_GOES_S` seconds for one."""
        until = time.monotonic() + _GOES_S
        while True:
            gone = [rank for rank in range(self._ranks) if self._is_gone(rank)]
            if gone or time.monotonic() > until:
                return gone
            time.sleep(0.02)

    def _is_gone(self, rank: int) -> bool:
        """Return whether a rank ran on this machine and has ended."""
        try:
            host, pid = self._store.get(f"paceline/rank/{rank}").decode().split()
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return host == socket.gethostname()
        except (OSError, RuntimeError, ValueError):
            return False
        return host == socket.gethostname() and state in "ZX"

    def _say(self, message: str) -> None:
        sys.stderr.write(f"paceline: rank {self._rank}: {message}\n")
        sys.stderr.flush()
