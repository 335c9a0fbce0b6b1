"""How is the user's command run so that it notices nothing? Started with our environment, its streams its own.

Signals sent to us are passed on; those that the terminal sends have reached the program already. If we are
killed, the kernel tells the program, and the warden (`leftovers`) ends what else had been started. If the program is
killed, ranks that it leaves behind are ended: a launcher that is no more cannot do it.
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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from paceline.core.errors import UsageError
from paceline.monitor import orphan_reaper
from paceline.record import layout

INJECT = Path(__file__).parents[1] / "inprocess" / "inject"
_PASSED_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_PASSED_ON = tuple(signal.Signals[name] for name in _PASSED_NAMES if hasattr(signal, name))
_PR_SET_PDEATHSIG = 1
_TO_END = ("SIGINT", "SIGTERM", "SIGHUP")  # a program may answer these with exit code 0
_SI_KERNEL = 0x80
_POLL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How the command ended."""

    exit_code: int  # its own; 128 + N for a signal, as a shell reports it
    signal: str | None
    wall_s: float
    oom_kills: int | None  # kills by the kernel for lack of memory meanwhile; None: not counted here
    asked_to_end: str | None = None  # name of the first signal to end that came while the command ran
    ended_ranks: int = 0  # ranks that a killed launcher had left behind


def watched_environment(run_dir: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which every Python process below watches itself."""
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
    """Run a command to its end, passing signals on.

    Args:
        command: Program and arguments.
        environment: Its whole environment.
        started: Called with the process id once it runs.

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
    """Run the command with signals passed on.

    Returns:
        Its exit code, negative for a signal; the first signal to end that came; and how many ranks it left.
    """
    relayed = {*_PASSED_ON, signal.SIGCHLD}
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, relayed)
    try:
        process = _spawn(command, environment, previous)
        started(process.pid)
        code, asked = _wait(process, relayed)
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
        """Between fork and exec: die with the parent, and see signals as they were."""
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    with startable(command):
        return subprocess.Popen(command, env=dict(environment), preexec_fn=prepare, close_fds=False)  # noqa: PLW1509


@contextmanager
def startable(command: Sequence[str]) -> Iterator[None]:
    """Say what to type where a command cannot be started.

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

    Yields a function that tells it the program's process id.
    """
    if launch is None:
        yield lambda _: None
        return
    reading, writing = os.pipe()  # only we hold the end that is written to: it closes with us, however we end
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
        pass  # no more processes allowed: the program may still have its one
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
    """End the ranks of this command that a killed launcher left behind; other processes of its are left alone."""
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


def _wait(process: subprocess.Popen[bytes], relayed: set[signal.Signals]) -> tuple[int, str | None]:
    """Wait for the end of the process and pass signals on until then; also return the first of them that says "end".

    Signals are taken where some are pending, and never waited for: interrupted by a stop, `sigtimedwait` waits on, and
    returns what nobody has sent once its time is up (CPython up to 3.14).
    """
    asked: str | None = None
    with _ended_file(process.pid) as ended:
        while (code := process.poll()) is None:
            while signal.sigpending() & relayed:
                info = signal.sigtimedwait(relayed, 0)
                if info is not None and signal.Signals(info.si_signo).name in _TO_END:
                    asked = asked or signal.Signals(info.si_signo).name
                if info is not None and info.si_signo != signal.SIGCHLD and info.si_code != _SI_KERNEL:
                    process.send_signal(info.si_signo)
            select.select(ended, [], [], _POLL_S)
    return code, asked


@contextmanager
def _ended_file(pid: int) -> Iterator[list[int]]:
    """Yield a descriptor that can be read once a process has ended; none where the kernel has no such thing."""
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
    """Forget signals that came while the program was ending: they were meant for it."""
    while signal.sigpending() & relayed:
        signal.sigtimedwait(relayed, 0)


def oom_kills() -> int | None:
    """Return how many processes this host's kernel has killed for lack of memory, or None where it does not say."""
    try:
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except OSError:
        return None
    return None
