"""Recodes a JPEG with jpegtran, so that it is fast to decode. No pixel changes.

Progressive coding takes two to three times as long to decode; it becomes baseline.
And restart markers, some to each row of blocks, let a crop decode only what it needs (`paceline.data.format.jpeg`).
Coding tables made for the picture win more than the markers take.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from functools import cache

from paceline.core.errors import EnvironmentFault
from paceline.data.format.jpeg import NotAJpeg, best_interval, header_of, intervals_of

_LONG_S = 60.0
_SENT = (
    signal.SIGKILL,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
)  # by others


@cache
def jpegtran() -> str | None:
    """Return where the program is; None where it is not installed."""
    return shutil.which("jpegtran")


def in_intervals(data: bytes) -> bytes:
    """Return a JPEG with the same pixels whose parts can be decoded alone; the same bytes where that cannot be done.

    Raises:
        EnvironmentFault: The program could not be started, or was killed: another try may give other bytes.
    """
    program = jpegtran()
    try:
        header = header_of(data)
    except NotAJpeg:
        return data
    interval = best_interval(header)
    if program is None or (header.interval == interval and intervals_of(data, header) is not None):
        return data
    command = [program, "-copy", "all", "-optimize", "-restart", f"{interval}B"]
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=_LONG_S, check=False)
        made = header_of(done.stdout) if done.returncode == 0 else None
    except (subprocess.TimeoutExpired, NotAJpeg):
        return data
    except OSError as error:
        raise EnvironmentFault(
            f"cannot start {program}: {error.strerror or error}; repeat the command, or copy JPEGs unchanged with "
            "--verbatim"
        ) from error
    if -done.returncode in _SENT:
        raise EnvironmentFault(f"{program} was killed; repeat the command, which continues where it was")
    # What jpegtran warns of (status 2) is a damaged picture: it stays as it is, for its reader to judge.
    same = made is not None and (made.width, made.height, made.components) == (
        header.width,
        header.height,
        header.components,
    )
    return done.stdout if same else data
