"""The line to one rank of a trial: JSON, one object a line, over a socket."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from typing import Any


class Link:
    """The line to one rank."""

    def __init__(self, link: socket.socket) -> None:
        self.socket = link
        self._received = b""

    def tell(self, **entry: Any) -> None:
        """Say something; who is gone does not hear it, and waiting for the answer will tell."""
        with suppress(OSError):
            self.socket.sendall(json.dumps(entry).encode() + b"\n")

    def receive(self) -> bool:
        """Take what has come; False when nothing will come any more."""
        try:
            data = self.socket.recv(1 << 16)
        except OSError:
            return False
        self._received += data
        return bool(data)

    def heard(self) -> dict[str, Any] | None:
        """Return the next thing said, or None when it is not complete."""
        line, end, rest = self._received.partition(b"\n")
        if not end:
            return None
        self._received = rest
        said: dict[str, Any] = json.loads(line)
        return said
