"""Start a program on some ranks as `torchrun` does, with torch imported once for all of them.

    python tests/train/forked.py RANKS PROGRAM [ARGUMENT ...]

What a rank imports takes seconds and is the same in all; they are forks of one process that has it, from before any
thread began. The first rank that fails ends the others soon, and its exit code is that of all.
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
GRACE_S = 5.0  # for the other ranks, after one has failed


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def become(rank: int, ranks: int, port: int, command: list[str]) -> None:
    """Run the program as one rank, in this process."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
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
            for child in children:
                os.kill(child, signal.SIGKILL)
            until = None
        else:
            time.sleep(0.02)
    return first


def main() -> int:
    for name in IMPORTED:
        importlib.import_module(name)
    ranks, command, port, children = int(sys.argv[1]), sys.argv[2:], free_port(), set()
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            become(rank, ranks, port, command)
            return 0
        children.add(child)
    return waited(children)


if __name__ == "__main__":
    sys.exit(main())
