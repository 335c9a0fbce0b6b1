"""What a verb needs of the operating system, and the error where that is missing."""

from __future__ import annotations

import os
import signal
from typing import Literal

from paceline.core.errors import EnvironmentFault

Need = Literal["posix", "linux"]
_ANYWHERE = "paceline report, compare, trace, explain and plan --gpus with numbers (such as --params 8b) work here"


def check_system(what: str, need: Need) -> None:
    """Make sure that this system has what a verb needs.

    Args:
        what: What was asked for, such as ``paceline run``.
        need: ``posix``: signals that can be blocked and passed on, as Linux and macOS have them. ``linux``: also
            ``/proc``, which lists the processes of a program with their environment.

    Raises:
        EnvironmentFault: It has not.
    """
    if not hasattr(signal, "pthread_sigmask"):
        raise EnvironmentFault(f"{what} does not work on Windows, only on Linux and macOS: use WSL 2; {_ANYWHERE}")
    if need == "linux" and not lists_processes():
        raise EnvironmentFault(
            f"{what} needs Linux, because it finds the processes of a program in /proc, which is missing here; "
            f"paceline run without --layout works; {_ANYWHERE}"
        )


def lists_processes() -> bool:
    """Say whether ``/proc`` lists the processes of this system."""
    try:
        return str(os.getpid()) in os.listdir("/proc")
    except OSError:
        return False


def allowed_cores() -> frozenset[int]:
    """Return the numbers of the CPU cores that this process may run on; all cores where the system has no affinity."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))
