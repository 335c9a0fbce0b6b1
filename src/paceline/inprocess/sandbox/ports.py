"""Map the ports at which the ranks of a trial connect, because two trials of a program run at the same time.

Each port that a program or its launcher names (``--master-port``, ``MASTER_PORT``, an endpoint) is replaced by another
port, which is the same for all processes of the trial. Only ports on this machine are replaced.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from threading import get_ident
from typing import Any

PORTS = "PACELINE_PORTS"  # folder with one file per port, which contains the replacement
_NAME = "TCPStore"


def patch(torch: Any, folder: str) -> None:
    """Replace the ports of all TCP stores in this process."""
    native = getattr(torch.distributed, _NAME, None)
    if native is None:
        return
    place = Path(folder)

    class OwnStore(native):  # type: ignore[misc,valid-type]  # the class of this torch
        def __init__(self, host_name: str, port: int, *args: Any, **more: Any) -> None:
            own = own_port(place, port) if port and is_here(host_name) else port
            super().__init__(host_name, own, *args, **more)
            stands_for(place, self.port, self.port)  # other processes are given this store's actual port

    OwnStore.__name__ = OwnStore.__qualname__ = _NAME
    for module in [*sys.modules.values()]:
        name = getattr(module, "__name__", None)
        if isinstance(name, str) and name.startswith("torch.") and vars(module).get(_NAME) is native:
            setattr(module, _NAME, OwnStore)


def own_port(folder: Path, port: int) -> int:
    """Return the port that replaces `port`, the same in all processes of the trial."""
    return stands_for(folder, port, None)


def stands_for(folder: Path, port: int, other: int | None) -> int:
    """Return the port that replaces `port`. If none is recorded yet, record `other` (None: a free port) first."""
    folder.mkdir(exist_ok=True)
    known, draft = folder / str(port), folder / f"{port}.{os.getpid()}.{get_ident()}"
    if not known.exists():
        draft.write_text(str(other or free_port()))
        with suppress(FileExistsError):
            os.link(draft, known)  # atomic: one process creates the complete file
        draft.unlink()
    return int(known.read_text())


def free_port() -> int:
    """Return a port without a listener."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def is_here(host: str) -> bool:
    """Return whether a host is this machine."""
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
