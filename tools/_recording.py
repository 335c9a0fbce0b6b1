"""Record a terminal session with its timing, as asciicast v2 (https://docs.asciinema.org/manual/asciicast/v2/).

The first line of the file is a JSON object about the session, every other line an event ``[seconds, "o", text]``. A
command that the session typed is an event ``[seconds, "i", command]``.
"""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

Event = tuple[float, str, str]
SILENCE_LIMIT_S = 600.0


@dataclass(frozen=True)
class Recording:
    """Events of a session, and the size of its terminal."""

    columns: int
    rows: int
    machine: str
    date: str
    events: tuple[Event, ...]

    def dumps(self) -> str:
        """Return the recording as asciicast v2."""
        head = {"version": 2, "width": self.columns, "height": self.rows, "machine": self.machine, "date": self.date}
        lines = [json.dumps([round(at, 3), kind, text], ensure_ascii=False) for at, kind, text in self.events]
        return "\n".join([json.dumps(head), *lines, ""])


def loads(text: str) -> Recording:
    """Read a recording from asciicast v2."""
    first, *lines = text.splitlines()
    head = json.loads(first)
    events = tuple((at, kind, data) for at, kind, data in map(json.loads, lines))
    return Recording(head["width"], head["height"], head["machine"], head["date"], events)


class CommandFailed(Exception):
    """A recorded command did not end with exit code 0."""


def record(commands: Sequence[str], folder: Path, env: dict[str, str], size: tuple[int, int]) -> list[Event]:
    """Run commands in a pseudo-terminal, one after the other, and return what they printed and when.

    Args:
        commands: Lines for bash.
        folder: Where they run.
        env: Their environment.
        size: Columns and rows of the terminal.

    Raises:
        CommandFailed: One of them ended with an exit code that is not 0.
    """
    begin, events = time.monotonic(), []
    for command in commands:
        events.append((time.monotonic() - begin, "i", command))
        events += _record_one(command, folder, env, size, begin)
    return events


def _record_one(command: str, folder: Path, env: dict[str, str], size: tuple[int, int], begin: float) -> list[Event]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    process = subprocess.Popen(
        ["bash", "-c", command], cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    try:
        events = _read_all(ours, begin)
        code = process.wait()
    finally:  # after Ctrl-C too, nothing that the command started goes on
        os.close(ours)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
    if code != 0:
        shown = "".join(text for _, _, text in events)
        raise CommandFailed(f"`{command}` ended with exit code {code}:\n{shown}")
    return events


def _read_all(descriptor: int, begin: float) -> list[Event]:
    """Read until the last process closes the terminal, which Linux reports as an input/output error."""
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    events: list[Event] = []
    while select.select([descriptor], [], [], SILENCE_LIMIT_S)[0]:
        try:
            data = os.read(descriptor, 65536)
        except OSError:
            break
        if not data:
            break
        events.append((time.monotonic() - begin, "o", decode(data)))
    return events
