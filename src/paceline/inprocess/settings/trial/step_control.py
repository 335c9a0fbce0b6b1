"""Step control: a trial runs in blocks of steps, and the training thread asks for the next block at the end of each.

The controller listens on a socket; messages are JSON lines. This process sends ``{"pid", "rank", "world"}`` once, then
at the end of each block ``{"steps", "begun_ns", "ended_ns", "optimizers", "peak_bytes", "gpus", "from_queue",
"queued"}``. The controller sends ``{"steps": n}`` to continue for n optimizer steps, or ``{"end": true}``: the record
is completed and the process exits without running more of the program. A lost connection ends the trial too. A process
that cannot be tried sends ``{"refused": reason}`` and exits.

At the start and end of a block the device has finished all queued work.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import traceback
from _thread import get_ident
from multiprocessing import process
from typing import Any

from paceline.inprocess.settings import ready_batches
from paceline.inprocess.settings.trial import peak_memory
from paceline.inprocess.settings.trial.rank import rank_and_world

_WAIT_S = 3600.0


def patch(torch: Any, path: str) -> None:
    """Pause the training thread at the end of each block of optimizer steps. A program needs an optimizer for this."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    ready_batches.patch()
    conducted = _Conducted(torch, path, os.getpid())

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if conducted.owns(get_ident()):
            conducted.step(id(optimizer))

    register_optimizer_step_post_hook(after)


class _Conducted:
    """The step control in this process."""

    def __init__(self, torch: Any, path: str, pid: int) -> None:
        self._torch = torch
        self._path = path
        self._pid = pid
        self._lines: Any = None
        self._left = 1
        self._steps = 0
        self._begun_ns = time.perf_counter_ns()
        self._optimizers: set[int] = set()
        self._owner: int | None = None
        self._queues: ready_batches.Queues | None = None  # at the start of the block

    def owns(self, thread: int) -> bool:
        """Return whether a thread is the training thread, which is the first thread that makes a step."""
        if self._owner is None:
            self._owner = thread
        return thread == self._owner

    def step(self, optimizer: int) -> None:
        """Count one optimizer step. At the end of a block, wait for the controller's answer."""
        if os.getpid() != self._pid:
            return  # a forked child
        if getattr(process.current_process(), "_inheriting", False):
            _refuse()
        if self._torch.cuda.is_initialized() and self._torch.cuda.is_current_stream_capturing():
            self._refuse("it replays whole steps as a CUDA graph, and tune can neither change nor time these steps")
        self._steps += 1
        self._optimizers.add(optimizer)
        self._left -= 1
        if self._left <= 0:
            drain(self._torch)
            self._stop(time.perf_counter_ns())

    def _stop(self, now: int) -> None:
        before, after = self._queues, ready_batches.now()
        try:
            if self._lines is None:
                self._connect()
            self._say(
                steps=self._steps,
                begun_ns=self._begun_ns,
                ended_ns=now,
                optimizers=len(self._optimizers),
                peak_bytes=peak_memory.needed_bytes(self._torch),
                gpus=peak_memory.gpu_memory(self._torch),
                from_queue=ready_batches.used_up(before, after) if before and after else None,
                queued=after.ready if after else None,
            )
            answer = json.loads(self._lines.readline() or '{"end": true}')
        except (OSError, ValueError):
            answer = {"end": True}
        if answer.get("end"):
            self._end()
        self._left = answer["steps"]
        peak_memory.begin(self._torch)
        drain(self._torch)
        self._queues = ready_batches.now()
        self._begun_ns = time.perf_counter_ns()

    def _refuse(self, why: str) -> None:
        """Tell the controller why the program cannot be tried, and end this process."""
        try:
            if self._lines is None:
                self._connect()
            self._say(refused=why)
        finally:
            os._exit(1)

    def _connect(self) -> None:
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(_WAIT_S)
        link.connect(self._path)
        self._lines = link.makefile("rw", encoding="utf-8")
        rank, world = rank_and_world(self._torch)
        self._say(pid=self._pid, rank=rank, world=world)

    def _say(self, **entry: Any) -> None:
        self._lines.write(json.dumps(entry) + "\n")
        self._lines.flush()

    def _end(self) -> None:
        """Complete the record and exit; no further line of the program runs."""
        from paceline.inprocess.recorder import start
        from paceline.inprocess.settings.trial import process_notes

        for write in (process_notes.write, start.finish, _flush):
            try:
                write()
            except Exception:
                traceback.print_exc()  # the reader of the notes reports missing files
        os._exit(0)


def drain(torch: Any) -> None:
    """Wait until every GPU that this process uses has finished its work; skipped while a graph is captured."""
    for index in peak_memory.used_gpus(torch):
        torch.cuda.synchronize(index)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _refuse() -> None:
    """Print an error and end a spawned helper process, because it runs the whole script by mistake."""
    os.write(2, b"paceline: a spawned process runs the whole script: it has no `if __name__ == '__main__':`\n")
    os._exit(1)
