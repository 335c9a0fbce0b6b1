"""How does a trial go forward block by block? At the end of each block the training thread asks how far it may go.

The conductor listens on a socket; lines of JSON. From here: ``{"pid", "rank", "world"}`` once, then at each stop
``{"steps", "begun_ns", "ended_ns", "optimizers", "peak_bytes", "gpus", "from_queue", "queued"}``. From there:
``{"steps": n}`` to go on for n optimizer steps, or ``{"end": true}``: the record is written to its end and no line of
the program runs any more. A conductor that is gone ends the trial too.

A block begins and ends with nothing left to do on the device: work that was only queued is not done.
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
    """Stop at optimizer steps of the thread that trains; what has no optimizer is not conducted."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    ready_batches.patch()
    conducted = _Conducted(torch, path, os.getpid())

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if conducted.owns(get_ident()):
            conducted.step(id(optimizer))

    register_optimizer_step_post_hook(after)


class _Conducted:
    """This process's part in a trial."""

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
        self._queues: ready_batches.Queues | None = None  # as the block began

    def owns(self, thread: int) -> bool:
        """Say whether a thread is the one that trains: the first that makes a step, in whatever thread torch is."""
        if self._owner is None:
            self._owner = thread
        return thread == self._owner

    def step(self, optimizer: int) -> None:
        """Count one optimizer step; at the end of a block wait for what comes next."""
        if os.getpid() != self._pid:
            return  # a forked child
        if getattr(process.current_process(), "_inheriting", False):
            _refuse()
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
        """Leave, with the record whole: no line of the program runs after this one."""
        from paceline.inprocess.recorder import start
        from paceline.inprocess.settings.trial import process_notes

        for write in (process_notes.write, start.finish, _flush):
            try:
                write()
            except Exception:
                traceback.print_exc()  # what is missing is told by who looks for it
        os._exit(0)


def drain(torch: Any) -> None:
    """Wait until every GPU that this process uses has done its work; not while a graph is captured."""
    for index in peak_memory.used_gpus(torch):
        torch.cuda.synchronize(index)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _refuse() -> None:
    """End a process that was spawned to serve the program and trains instead."""
    os.write(2, b"paceline: a spawned process runs the whole script: it has no `if __name__ == '__main__':`\n")
    os._exit(1)
