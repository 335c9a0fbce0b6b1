"""The error that a program printed last, with its place in the source."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

_TAIL = 8000  # bytes of the output that are read
_ASKED = "; in a trial, the standard input of the program is empty: pass the answers as options of the program instead"
_TELLING = re.compile(r"\W*(rank\d+\W+)?[\w.]+(Error|Exception|Exit)(: \S.*)?$")  # and not a launcher's summary
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_INSTALLED = re.compile(r"^<|/(site|dist)-packages/|/lib/python\d")


def last_words(folder: Path) -> str:
    """Return ``: `` and the last error in the output of a program, or its last line; empty if it printed nothing.

    Args:
        folder: The folder of its trial.
    """
    with (folder / "output.txt").open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    telling = [number for number, line in enumerate(lines) if _TELLING.match(line)]
    if not lines:
        return ""
    last = lines[telling[-1]] if telling else lines[-1]
    place = _place(lines[: telling[-1]]) if telling else ""
    return f": {last}{place}{_ASKED if last.startswith('EOFError') else ''}"


def _place(before: Sequence[str]) -> str:
    """Return the last line of a traceback that is in no installed package, as `` (train.py:47)``."""
    frames = [found for line in before if (found := _FRAME.search(line)) is not None]
    own = [frame for frame in frames if not _INSTALLED.search(frame[1])]
    return f" ({Path(own[-1][1]).name}:{own[-1][2]})" if own else ""
