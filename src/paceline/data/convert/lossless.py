"""Lossless recoding of JPEGs with jpegtran, so that they are fast to decode. No pixel changes.

Progressive coding takes two to three times as long to decode, so progressive JPEGs are converted to baseline coding,
unless scans are missing.
Restart markers, several in each row of blocks, let a crop decode only what it needs (`paceline.data.format.jpeg`).
Optimized Huffman tables save more bytes than the markers add.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from functools import cache

from paceline.core.errors import EnvironmentFault
from paceline.data.format.jpeg import NotAJpeg, best_interval, has_all_bits, header_of, intervals_of

_LONG_S = 60.0  # the time limit of jpegtran
_SENT = (
    signal.SIGKILL,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
)  # signals from other processes


@cache
def jpegtran() -> str | None:
    """Return the path of jpegtran, or None if it is not installed."""
    return shutil.which("jpegtran")


def in_intervals(data: bytes) -> bytes:
    """Return a JPEG with the same pixels and with restart markers; if that is not possible, return the JPEG unchanged.

    Raises:
        EnvironmentFault: jpegtran could not be started, or was killed, so another try can give other bytes.
    """
    program = jpegtran()
    try:
        header = header_of(data)
        if header.progressive and not has_all_bits(data):  # with another coding, decoders would not smooth it
            return data
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
    # A warning of jpegtran (status 2) means a damaged image, which stays unchanged; its reader decides about it.
    same = made is not None and (made.width, made.height, made.components) == (
        header.width,
        header.height,
        header.components,
    )
    return done.stdout if same else data
