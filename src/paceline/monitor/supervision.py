"""Run the user's command under supervision, with its own streams and Paceline's environment variables.

Signals to Paceline are forwarded, except those that the program has received itself: from the terminal, or because they
were sent to the whole process group. If Paceline is killed, the kernel signals the program, and the warden
(`orphan_reaper`) ends the other processes of the command. If the program is killed, its remaining ranks are ended,
because a killed launcher cannot end them.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from paceline.core.errors import UsageError
from paceline.core.group_signals import GroupMember
from paceline.monitor import orphan_reaper
from paceline.record import layout

INJECT = Path(__file__).parents[1] / "inprocess" / "inject"
_PASSED_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_PASSED_ON = tuple(signal.Signals[name] for name in _PASSED_NAMES if hasattr(signal, name))
_PR_SET_PDEATHSIG = 1
_TO_END = ("SIGINT", "SIGTERM", "SIGHUP")  # termination signals: a program may handle them and exit with code 0
_SI_KERNEL = 0x80
_POLL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How the command ended."""

    exit_code: int  # the program's own; 128 + N for signal N, as in a shell
    signal: str | None
    wall_s: float
    oom_kills: int | None  # processes that the kernel killed for lack of memory meanwhile; None: not counted here
    asked_to_end: str | None = None  # name of the first termination signal that arrived during the command
    ended_ranks: int = 0  # remaining ranks of a killed launcher that were ended


def watched_environment(run_dir: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which every Python process of the command records itself."""
    inherited = [p for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p and p != str(INJECT)]
    return {
        **environment,
        "PACELINE_WATCH_DIR": str(run_dir.resolve()),
        orphan_reaper.VARIABLE: f"{os.getpid()}-{time.time_ns()}",
        "PYTHONPATH": os.pathsep.join([str(INJECT), *inherited]),
    }


def supervise(
    command: Sequence[str], environment: Mapping[str, str], started: Callable[[int], None] = lambda _: None
) -> Ending:
    """Run a command to its end and forward signals to it.

    Args:
        command: Program and arguments.
        environment: The complete environment of the program.
        started: Called with the process id after the start.

    Raises:
        UsageError: The program does not exist or may not be executed.
    """
    begun, oom_before = time.monotonic(), oom_kills()
    with warden(environment.get(orphan_reaper.VARIABLE)) as tell:

        def running(pid: int) -> None:
            tell(pid)
            started(pid)

        code, asked, ended_ranks = _run(command, environment, running)
    oom_after = oom_kills()
    return Ending(
        exit_code=code if code >= 0 else 128 - code,
        signal=signal.Signals(-code).name if code < 0 else None,
        wall_s=time.monotonic() - begun,
        oom_kills=None if oom_before is None or oom_after is None else oom_after - oom_before,
        asked_to_end=asked,
        ended_ranks=ended_ranks,
    )


def _run(
    command: Sequence[str], environment: Mapping[str, str], started: Callable[[int], None]
) -> tuple[int, str | None, int]:
    """Run the command and forward signals to it.

    Returns:
        The exit code, negative for a signal; the name of the first termination signal that arrived; and the number of
        remaining ranks that were ended.
    """
    relayed = {*_PASSED_ON, signal.SIGCHLD}
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, relayed)
    try:
        with closing(GroupMember()) as member:
            process = _spawn(command, environment, previous)
            started(process.pid)
            code, asked = _wait(process, relayed, member)
        return code, asked, _end_ranks(environment) if code < 0 else 0
    finally:
        _drop_pending(relayed)
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _spawn(
    command: Sequence[str], environment: Mapping[str, str], mask: set[signal.Signals | int]
) -> subprocess.Popen[bytes]:
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    parent = os.getpid()

    def prepare() -> None:
        """Between fork and exec: request SIGTERM when the parent ends, and restore the signal mask."""
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    with startable(command):
        return subprocess.Popen(command, env=dict(environment), preexec_fn=prepare, close_fds=False)  # noqa: PLW1509


@contextmanager
def startable(command: Sequence[str]) -> Iterator[None]:
    """Convert errors of starting a command into usage errors that suggest a fix.

    Raises:
        UsageError: The program does not exist or may not be executed.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise UsageError(
            f"command not found: {command[0]!r} is neither a file nor a command on PATH; check its spelling"
        ) from error
    except PermissionError as error:
        raise UsageError(f"{command[0]!r} may not be executed; for a Python script, leave out `--`") from error
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(
            f"{command[0]!r} cannot be started: {reason}; a script must begin with a line such as #!/bin/sh"
        ) from error


@contextmanager
def warden(launch: str | None) -> Iterator[Callable[[int], None]]:
    """Start a process that ends the program if Paceline is killed.

    Yields a function that sends the program's process id to this process.
    """
    if launch is None:
        yield lambda _: None
        return
    reading, writing = os.pipe()  # only Paceline has the write end, which closes when Paceline ends for any reason
    watching = None
    try:
        with open(os.devnull, "r+b") as nowhere:
            watching = subprocess.Popen(
                [sys.executable, "-I", "-S", orphan_reaper.__file__, launch],
                stdin=reading,
                stdout=nowhere,
                stderr=nowhere,
                start_new_session=True,
            )
    except OSError:
        pass  # the process limit is reached: run the program without a warden
    finally:
        os.close(reading)
    try:
        yield lambda pid: _write(writing, b"%d\n" % pid)
    finally:
        _write(writing, b"\n" + orphan_reaper.FAREWELL)
        os.close(writing)
        if watching is not None:
            watching.wait()


def _write(descriptor: int, data: bytes) -> None:
    with suppress(OSError):
        os.write(descriptor, data)


def _end_ranks(environment: Mapping[str, str]) -> int:
    """End the remaining ranks of a killed launcher and return their number. Other processes of the command continue."""
    launch, run_dir = environment.get(orphan_reaper.VARIABLE), environment.get("PACELINE_WATCH_DIR")
    if launch is None or run_dir is None:
        return 0
    folder = Path(run_dir, layout.RANKS_DIR)

    def ranks() -> dict[int, int]:
        found = orphan_reaper.processes_of(launch)
        return {pid: parent for pid, parent in found.items() if any(folder.glob(f"*-{pid}"))}

    left = len(ranks())
    orphan_reaper.end(ranks)
    return left


def _wait(
    process: subprocess.Popen[bytes], relayed: set[signal.Signals], member: GroupMember
) -> tuple[int, str | None]:
    """Wait for the end of the process and forward signals. Return the exit code and the first termination signal.

    Only pending signals are taken, without waiting. The reason: `sigtimedwait` resumes after a stop signal and returns
    a signal that nobody sent when its timeout ends (CPython up to 3.14).
    """
    asked: str | None = None
    with _ended_file(process.pid) as ended:
        while (code := process.poll()) is None:
            while signal.sigpending() & relayed:
                info = signal.sigtimedwait(relayed, 0)
                if info is not None and signal.Signals(info.si_signo).name in _TO_END:
                    asked = asked or signal.Signals(info.si_signo).name
                if info is None or info.si_signo == signal.SIGCHLD or info.si_code == _SI_KERNEL:
                    continue
                if not member.child_received(info.si_signo, process.pid):
                    process.send_signal(info.si_signo)
            select.select(ended, [], [], _POLL_S)
    return code, asked


@contextmanager
def _ended_file(pid: int) -> Iterator[list[int]]:
    """Yield a list with a file descriptor that becomes readable when a process ends; empty without pidfd_open."""
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):
        yield []
        return
    try:
        yield [descriptor]
    finally:
        os.close(descriptor)


def _drop_pending(relayed: set[signal.Signals]) -> None:
    """Discard signals that arrived while the program was ending; they were meant for the program."""
    while signal.sigpending() & relayed:
        signal.sigtimedwait(relayed, 0)


def oom_kills() -> int | None:
    """Return the number of processes that this host's kernel has killed for lack of memory, or None if unknown."""
    try:
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except OSError:
        return None
    return None
