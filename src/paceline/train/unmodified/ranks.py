"""How are the ranks of a program that nobody edited started, and how do all end when one does? Run as a program.

    python -I -S ranks.py '{"ranks": 2, ...}' python train.py --its --flags

Rank 0 has the terminal: what it prints, reads and returns is the program's. What others print goes to files, and is
shown only where one of them is the first to fail. Signals are passed on to all; those that the terminal sends have
reached them already. Standard library only, and nothing of ours.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

try:
    import resource
except ModuleNotFoundError:  # Windows: `hardware.operating_system` says that what needs it does not work there
    resource = None  # type: ignore[assignment]

RANK = "PACELINE_RANK"  # what a rank is told of its place, as JSON
_PASSED_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_PASSED_ON = {signal.Signals[name] for name in _PASSED_NAMES if hasattr(signal, name)}
_PR_SET_PDEATHSIG = 1
_SI_KERNEL = 0x80
_POLL_S = 0.05
_TO_END_S = 3.0  # that rank 0 has to end by itself where another one failed, and all have where they are ended
_TO_FINISH_S = 30.0  # that others have once rank 0 is through
_TOLD_LINES = 30


def run(wanted: Mapping[str, Any], command: Sequence[str]) -> int:
    """Run a command as ranks. Returns its exit code, negative for a signal.

    Args:
        wanted: ``{"ranks": how many, "layout": as it was given}``.
        command: What each rank runs.
    """
    folder = Path(tempfile.mkdtemp(prefix="paceline-ranks-"))
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        shared = {**wanted, "folder": str(folder), "port": _free_port(), "seed": secrets.randbits(48)}
        shared["since_s"] = time.time()
        shared["devices"] = os.environ.get("CUDA_VISIBLE_DEVICES")
        for rank in range(int(wanted["ranks"])):
            ranks.append(_start(command, {**shared, "rank": rank, "launcher": os.getpid()}, previous))
        return _until_the_end(ranks, folder)
    finally:
        _end(ranks)
        shutil.rmtree(folder, ignore_errors=True)


def _start(command: Sequence[str], place: Mapping[str, Any], mask: set[Any]) -> subprocess.Popen[bytes]:
    rank, folder, libc, parent = int(place["rank"]), Path(place["folder"]), ctypes.CDLL(None), os.getpid()

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    environment = {**os.environ, **_of_rank(place, os.environ), RANK: json.dumps(place)}
    if rank == 0:
        return subprocess.Popen(command, env=environment, preexec_fn=prepare, close_fds=False)  # noqa: PLW1509
    with open(os.devnull, "r+b") as nowhere, _said(folder, rank).open("wb") as said:
        streams: dict[str, BinaryIO] = {"stdin": nowhere, "stdout": nowhere, "stderr": said}
        return subprocess.Popen(command, env=environment, preexec_fn=prepare, **streams)  # type: ignore[call-overload]  # noqa: PLW1509


def _of_rank(place: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of one rank: its GPU, its share of the cores, one hash seed, no second tracker."""
    rank, ranks = int(place["rank"]), int(place["ranks"])
    cores = len(os.sched_getaffinity(0))
    found = {
        "OMP_NUM_THREADS": environment.get("OMP_NUM_THREADS") or str(max(1, cores // ranks)),
        "PYTHONHASHSEED": environment.get("PYTHONHASHSEED") or str(place["seed"] % 2**32),
        "CUDA_VISIBLE_DEVICES": _devices(environment, ranks)[rank],
    }
    if rank == 0:
        return found
    temporary = Path(
        place["folder"], f"tmp-{rank}"
    )  # sockets of loader workers lie there, and must be where they are said to be
    temporary.mkdir()
    return {**found, "TMPDIR": str(temporary), "WANDB_MODE": "disabled", "COMET_MODE": "disabled"}


def _devices(environment: Mapping[str, str], ranks: int) -> list[str]:
    """Return one GPU for each rank; what does not exist is none."""
    given = environment.get("CUDA_VISIBLE_DEVICES")
    named = [str(each) for each in range(ranks)] if given is None else [each for each in given.split(",") if each]
    return [*named, *[""] * ranks][:ranks]


def _until_the_end(ranks: Sequence[subprocess.Popen[bytes]], folder: Path) -> int:
    """Wait for rank 0, or for the first that fails."""
    failed: tuple[int, int] | None = None
    deadline = float("inf")
    while True:
        _pass_on(ranks)
        codes = [process.poll() for process in ranks]
        if codes[0] is not None and failed is None:
            if codes[0] == 0:
                _wait_for(ranks, _TO_FINISH_S)
            return codes[0]
        if failed is None:
            failed = next(((rank, code) for rank, code in enumerate(codes) if code), None)
            deadline = time.monotonic() + _TO_END_S if failed else deadline
        elif codes[0] is not None or time.monotonic() > deadline:
            return _same_end(failed, codes[0], folder)
        time.sleep(_POLL_S)


def _same_end(failed: tuple[int, int], of_rank_0: int | None, folder: Path) -> int:
    """Return the code of a run in which another rank failed first, and say why where rank 0 did not fail alike."""
    rank, code = failed
    if of_rank_0:
        return of_rank_0
    said = _said(folder, rank).read_text(encoding="utf-8", errors="replace").splitlines()[-_TOLD_LINES:]
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    text = "\n".join([*said, f"paceline: rank {rank} {how}; all ranks end"])
    os.write(2, f"{text}\n".encode())
    return code


def _wait_for(ranks: Sequence[subprocess.Popen[bytes]], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and any(process.poll() is None for process in ranks):
        _pass_on(ranks)
        time.sleep(_POLL_S)


def _pass_on(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    while signal.sigpending() & {*_PASSED_ON, signal.SIGCHLD}:
        info = signal.sigtimedwait({*_PASSED_ON, signal.SIGCHLD}, 0)
        if info is None or info.si_signo == signal.SIGCHLD or info.si_code == _SI_KERNEL:
            continue
        for process in ranks:
            process.send_signal(info.si_signo)


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """End those that are left: gently, and after a while surely."""
    for number, limit_s in ((signal.SIGTERM, _TO_END_S), (signal.SIGKILL, _TO_END_S)):
        left = [process for process in ranks if process.poll() is None]
        for process in left:
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)
        if left:
            _wait_for(left, limit_s)


def _said(folder: Path, rank: int) -> Path:
    return folder / f"said-{rank}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Run what the command line says, and end as it ended."""
    code = run(json.loads(sys.argv[1]), sys.argv[2:])
    if code >= 0:
        sys.exit(code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it is in the rank's place, not in ours
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    main()
