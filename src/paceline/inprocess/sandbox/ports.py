"""Where do the ranks of a trial meet? At ports of their own: two trials of one program run at the same time.

A port that a program or its launcher names (``--master-port``, ``MASTER_PORT``, an endpoint) stands for another one in
each trial, the same for all of its processes. Only on this machine: a meeting place on another one is left as it is.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from threading import get_ident
from typing import Any

PORTS = "PACELINE_PORTS"  # folder with a file for each port: which one it stands for
_NAME = "TCPStore"


def patch(torch: Any, folder: str) -> None:
    """Have each meeting place of this process be the trial's own."""
    native = getattr(torch.distributed, _NAME, None)
    if native is None:
        return
    place = Path(folder)

    class OwnStore(native):  # type: ignore[misc,valid-type]  # whatever torch has
        def __init__(self, host_name: str, port: int, *args: Any, **more: Any) -> None:
            own = own_port(place, port) if port and is_here(host_name) else port
            super().__init__(host_name, own, *args, **more)
            stands_for(place, self.port, self.port)  # others are told the port that it has

    OwnStore.__name__ = OwnStore.__qualname__ = _NAME
    for module in [*sys.modules.values()]:
        name = getattr(module, "__name__", None)
        if isinstance(name, str) and name.startswith("torch.") and vars(module).get(_NAME) is native:
            setattr(module, _NAME, OwnStore)


def own_port(folder: Path, port: int) -> int:
    """Return the port that one stands for, the same to whoever asks."""
    return stands_for(folder, port, None)


def stands_for(folder: Path, port: int, other: int | None) -> int:
    """Note that a port stands for another one, None for any that is free, unless it is known; return which it is."""
    folder.mkdir(exist_ok=True)
    known, draft = folder / str(port), folder / f"{port}.{os.getpid()}.{get_ident()}"
    if not known.exists():
        draft.write_text(str(other or free_port()))
        with suppress(FileExistsError):
            os.link(draft, known)  # whole, and by one process alone
        draft.unlink()
    return int(known.read_text())


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def is_here(host: str) -> bool:
    """Say whether a host is this machine."""
    try:
        families = {(family, address) for family, *_, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)}
    except OSError:
        return False
    return any(_binds(family, address) for family, address in families)


def _binds(family: int, address: Any) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.bind(address)
    except OSError:
        return False
    return True
