"""The launcher: starts the ranks of an unchanged script, passes on signals, and ends all ranks when one fails.

The module runs as a program:

    python -I -S ranks.py '{"ranks": 2, ...}' python train.py --its --flags

Rank 0 has the terminal: its output, input and exit code are those of the program. The stderr of other ranks goes to
files, and the last lines are printed only if such a rank fails first. Signals are passed on to all ranks, except those
from the terminal or to the whole process group, which reach all ranks anyway. The module imports only the standard
library, and a module of Paceline that imports only the standard library.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

sys.path.append(str(Path(__file__).resolve().parents[3]))  # with -I, the folder of Paceline is not on it
from paceline.core.group_signals import GroupMember  # noqa: E402

try:
    import resource
except ModuleNotFoundError:  # Windows, where `hardware.operating_system` refuses --layout
    resource = None  # type: ignore[assignment]

RANK = "PACELINE_RANK"  # the variable with the position of a rank, as JSON
_PASSED_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_PASSED_ON = {signal.Signals[name] for name in _PASSED_NAMES if hasattr(signal, name)}
_PR_SET_PDEATHSIG = 1
_SI_KERNEL = 0x80
_POLL_S = 0.05
_TO_END_S = 3.0  # for rank 0 to end by itself after another rank failed, and for each signal to end a rank
_TO_FINISH_S = 30.0  # for the other ranks after rank 0 has ended
_TOLD_LINES = 30  # printed of the stderr of a failed rank


@dataclass
class _Ranks:
    """The rank processes, and the helper process that detects signals sent to the whole process group."""

    processes: list[subprocess.Popen[bytes]]
    member: GroupMember


def run(wanted: Mapping[str, Any], command: Sequence[str]) -> int:
    """Run a command once for each rank, and return the exit code, negative for a signal.

    Args:
        wanted: ``{"ranks": the number of ranks, "layout": the layout as text}``.
        command: The command of each rank.
    """
    folder = Path(tempfile.mkdtemp(prefix="paceline-ranks-"))
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
    ranks = _Ranks([], GroupMember())
    try:
        shared = {**wanted, "folder": str(folder), "seed": secrets.randbits(48)}
        shared["since_s"] = time.time()
        shared["devices"] = os.environ.get("CUDA_VISIBLE_DEVICES")
        for rank in range(int(wanted["ranks"])):
            ranks.processes.append(_start(command, {**shared, "rank": rank, "launcher": os.getpid()}, previous))
        return _until_the_end(ranks, folder)
    finally:
        _end(ranks)
        ranks.member.close()
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
    """Return the environment variables of a rank: GPU, threads, hash seed; experiment trackers only on rank 0."""
    rank, ranks = int(place["rank"]), int(place["ranks"])
    cores = len(os.sched_getaffinity(0))
    found = {
        "OMP_NUM_THREADS": environment.get("OMP_NUM_THREADS") or str(max(1, cores // ranks)),
        "PYTHONHASHSEED": environment.get("PYTHONHASHSEED") or str(place["seed"] % 2**32),
        "CUDA_VISIBLE_DEVICES": _devices(environment, ranks)[rank],
    }
    if rank == 0:
        return found
    temporary = Path(place["folder"], f"tmp-{rank}")  # not redirected, as loader workers connect to sockets there
    temporary.mkdir()
    return {**found, "TMPDIR": str(temporary), "WANDB_MODE": "disabled", "COMET_MODE": "disabled"}


def _devices(environment: Mapping[str, str], ranks: int) -> list[str]:
    """Return ``CUDA_VISIBLE_DEVICES`` for each rank: one GPU, or empty if there are too few."""
    given = environment.get("CUDA_VISIBLE_DEVICES")
    named = [str(each) for each in range(ranks)] if given is None else [each for each in given.split(",") if each]
    return [*named, *[""] * ranks][:ranks]


def _until_the_end(ranks: _Ranks, folder: Path) -> int:
    """Wait until rank 0 ends or a rank fails, and return the exit code of the run."""
    failed: tuple[int, int] | None = None
    deadline = float("inf")
    while True:
        _pass_on(ranks)
        codes = [process.poll() for process in ranks.processes]
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
    """Return the exit code of a run in which another rank failed before rank 0.

    If rank 0 failed too, its code is returned, as it has printed its error. Otherwise the last lines of the failed
    rank's stderr are printed.

    Args:
        failed: The first failed rank and its exit code, negative for a signal.
        of_rank_0: The exit code of rank 0; None if it still runs.
        folder: The folder with the stderr of the ranks.
    """
    rank, code = failed
    if of_rank_0:
        return of_rank_0
    said = _said(folder, rank).read_text(encoding="utf-8", errors="replace").splitlines()[-_TOLD_LINES:]
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    text = "\n".join([*said, f"paceline: rank {rank} {how}; all ranks end"])
    os.write(2, f"{text}\n".encode())
    return code


def _wait_for(ranks: _Ranks, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and any(process.poll() is None for process in ranks.processes):
        _pass_on(ranks)
        time.sleep(_POLL_S)


def _pass_on(ranks: _Ranks) -> None:
    while signal.sigpending() & {*_PASSED_ON, signal.SIGCHLD}:
        info = signal.sigtimedwait({*_PASSED_ON, signal.SIGCHLD}, 0)
        if info is None or info.si_signo == signal.SIGCHLD or info.si_code == _SI_KERNEL:
            continue
        if ranks.processes and not ranks.member.child_received(info.si_signo, ranks.processes[0].pid):
            for process in ranks.processes:
                process.send_signal(info.si_signo)


def _end(ranks: _Ranks) -> None:
    """End the ranks that still run with SIGTERM, and after a time limit with SIGKILL."""
    for number, limit_s in ((signal.SIGTERM, _TO_END_S), (signal.SIGKILL, _TO_END_S)):
        left = [process for process in ranks.processes if process.poll() is None]
        for process in left:
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)
        if left:
            _wait_for(_Ranks(left, ranks.member), limit_s)


def _said(folder: Path, rank: int) -> Path:
    return folder / f"said-{rank}"


def main() -> None:
    """Run the command of `sys.argv`, and exit with its exit code or by its signal."""
    code = run(json.loads(sys.argv[1]), sys.argv[2:])
    if code >= 0:
        sys.exit(code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump of the launcher would be useless
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    main()
