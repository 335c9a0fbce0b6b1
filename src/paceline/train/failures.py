"""How does a run of many ranks end when one of them fails? With one error, on one rank, and nobody waits.

Each rank has a thread with a connection of its own to the store that the launcher or rank 0 keeps. The first rank
whose program ends by an error puts its name there and prints the error; others, whose collectives break for it, say
nothing of their own and end. One that waits in a collective that can never finish is ended by its thread.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from paceline.core.errors import PacelineError

_KEY = "paceline/failed"
_LOOK_S = 0.5  # how often a rank looks whether another one failed
_GRACE_S = 2.0  # for a rank to end by itself
_GOES_S = 1.0  # a process that was killed closes its connections first, and is seen as ended a little later
_LOST = ("closed by peer", "Connection reset", "Broken pipe", "remote process exited", "Socket closed")


def watch(rank: int) -> None:
    """Make errors of this rank known to all, and theirs to this one; does nothing the second time.

    Args:
        rank: Of this process; the default process group must be there.
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


def _rest(done: threading.Event, thread: threading.Thread) -> None:
    """Stop looking before the interpreter ends."""
    done.set()
    thread.join(_GRACE_S)


class _Rank:
    """One rank's part in ending together."""

    def __init__(self, rank: int, ranks: int, store: Any, earlier: Callable[..., Any]) -> None:
        self.done = threading.Event()
        self._rank = rank
        self._ranks = ranks
        self._store = store
        self._earlier = earlier
        store.set(f"paceline/rank/{rank}", f"{socket.gethostname()} {os.getpid()}")

    def ends_by_error(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """End this process; only the first rank that fails prints. Takes the place of `sys.excepthook`."""
        ours = isinstance(error, PacelineError)
        if self._claims():
            if not ours:
                self._earlier(kind, error, trace)
            self._say(str(error) if ours else self._why(error))
        else:
            self.done.wait(
                _GRACE_S / 2
            )  # a launcher ends all ranks as soon as one has ended: the first one prints before
        sys.stdout.flush()
        os._exit(error.exit_code if isinstance(error, PacelineError) else 1)

    def look(self, store: Any) -> None:
        """Wait until another rank has failed, then end this one if it does not end by itself."""
        try:
            while not self.done.wait(_LOOK_S):
                if store.check([_KEY]):
                    break
            else:
                return
        except RuntimeError:
            return  # the store has ended: collectives break by themselves
        if not self.done.wait(_GRACE_S):
            os._exit(1)

    def _claims(self) -> bool:
        """Return whether this rank is the first to fail; where nobody can tell, rank 1 is (the store was in rank 0)."""
        try:
            return bool(self._store.compare_set(_KEY, "", str(self._rank)) == str(self._rank).encode())
        except RuntimeError:
            return self._rank == 1

    def _why(self, error: BaseException) -> str:
        """Say what ended the run."""
        if not any(words in str(error) for words in _LOST):
            return "failed with the error above; all ranks end"
        gone = ", ".join(str(rank) for rank in self._gone())
        who = f"rank {gone}" if gone else "another rank"  # of another machine
        return f"{who} ended without an error (killed, out of memory, or exited early); all ranks end"

    def _gone(self) -> list[int]:
        """Return the ranks of this machine that have ended, and wait a little for one to."""
        until = time.monotonic() + _GOES_S
        while True:
            gone = [rank for rank in range(self._ranks) if self._is_gone(rank)]
            if gone or time.monotonic() > until:
                return gone
            time.sleep(0.02)

    def _is_gone(self, rank: int) -> bool:
        """Return whether a rank ran on this machine and does no more."""
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
