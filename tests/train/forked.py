"""Start a program on some ranks as `torchrun` does, with torch imported once for all of them.

    python tests/train/forked.py RANKS PROGRAM [ARGUMENT ...] [+ RANKS PROGRAM [ARGUMENT ...]] ...

What a rank imports takes seconds and is the same in all; they are forks of one process that has it, from before any
thread began. The first rank that fails ends the others soon, and its exit code is that of all. Where several programs
are given, all run at once, what each says goes to PROGRAM.NUMBER.err and its exit code to PROGRAM.NUMBER.code.
"""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import socket
import sys
import time
from pathlib import Path

IMPORTED = (
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.utils.data",
    "torch._dynamo",
    "paceline.train.engine",
)
GRACE_S = 20.0  # for the other ranks, after one has failed


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def become(rank: int, ranks: int, port: int, command: list[str]) -> None:
    """Run the program as one rank, in this process."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()}, TORCHELASTIC_USE_AGENT_STORE="True")
    sys.argv = command
    sys.path[0] = str(Path(command[0]).parent)
    runpy.run_path(command[0], run_name="__main__")


def waited(children: set[int]) -> int:
    """Wait for all; return the first exit code that is not 0."""
    first, until = 0, None
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            children.discard(pid)
            code = os.waitstatus_to_exitcode(status)
            if code and not first:
                first, until = code, time.monotonic() + GRACE_S
        elif until is not None and time.monotonic() > until:
            sys.stderr.write(f"{len(children)} ranks did not end with the first one and are killed\n")
            for child in children:
                os.kill(child, signal.SIGKILL)
            until = None
        else:
            time.sleep(0.02)
    return first


def start(ranks: int, command: list[str]) -> int | None:
    """Run one program; return its exit code, and None in its ranks."""
    port, children = free_port(), set()
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            become(rank, ranks, port, command)
            return None
        children.add(child)
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)  # outlives ranks, as torchrun's does
    code = waited(children)
    del store
    return code


def start_apart(number: int, ranks: int, command: list[str]) -> int | None:
    """Run one of several programs in a process of its own; None in those below it."""
    child = os.fork()
    if child:
        return child
    said = os.open(f"{command[0]}.{number}.err", os.O_WRONLY | os.O_CREAT)
    os.dup2(said, 1)
    os.dup2(said, 2)
    code = start(ranks, command)
    if code is not None:
        Path(f"{command[0]}.{number}.code").write_text(str(code))
    return None


def main() -> int:
    for name in IMPORTED:
        importlib.import_module(name)
    jobs: list[list[str]] = [[]]
    for word in sys.argv[1:]:
        if word == "+":
            jobs.append([])
        else:
            jobs[-1].append(word)
    if len(jobs) == 1:
        return start(int(jobs[0][0]), jobs[0][1:]) or 0
    children = set()
    for number, (ranks, *command) in enumerate(jobs):
        child = start_apart(number, int(ranks), command)
        if child is None:
            return 0
        children.add(child)
    return waited(children)


if __name__ == "__main__":
    sys.exit(main())
