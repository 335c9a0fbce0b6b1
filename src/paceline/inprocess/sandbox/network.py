"""Record, or refuse, a trial's connections to other hosts and to services that ran on this machine before it.

The patches cover Python's sockets and name lookups. In its own network namespace (`inprocess.sandbox.namespaces`) a
trial reaches no other host, and the requested hosts are recorded. Without a namespace, the connection is refused here.
"""

from __future__ import annotations

import errno
import functools
import json
import os
from types import ModuleType
from typing import Any

from paceline.inprocess import import_hook
from paceline.inprocess.sandbox.namespaces import own_addresses

MODE = "PACELINE_NETWORK"  # "record", or "refuse" to also refuse connections
SERVICES = "PACELINE_SERVICES"  # ports of this machine with a listener before the trial
FOLDER = "network"  # in the run's folder
_HERE = ("", "localhost", "ip6-localhost", "0.0.0.0", "::", "::1", "<any>")  # noqa: S104 not used to listen
_MOST = 100  # recorded peers per process
_told: set[tuple[str, int]] = set()


def begin() -> None:
    """Patch sockets when the program imports the module."""
    import_hook.install({"socket": _patch})


def _patch(module: ModuleType) -> None:
    socket: Any = module
    own = _OwnAddresses(socket)
    refuses = os.environ.get(MODE) == "refuse"

    def connecting(original: Any) -> Any:
        @functools.wraps(original)
        def connect(self: Any, address: Any) -> Any:
            if self.family in (socket.AF_INET, socket.AF_INET6) and own.is_peer(*address[:2]) and refuses:
                raise OSError(errno.ENETUNREACH, "Network is unreachable: a trial of paceline tune has no network")
            return original(self, address)

        return connect

    for name in ("connect", "connect_ex"):
        setattr(socket.socket, name, connecting(getattr(socket.socket, name)))
    for name in ("getaddrinfo", "gethostbyname"):
        setattr(socket, name, _looking_up(socket, getattr(socket, name), own, refuses))


def _looking_up(socket: Any, original: Any, own: _OwnAddresses, refuses: bool) -> Any:
    @functools.wraps(original)
    def look_up(host: Any, port: Any = 0, *args: Any, **kwargs: Any) -> Any:
        number = port if isinstance(port, int) else 0
        if own.is_peer(host, number, may_listen=True) and refuses:
            raise socket.gaierror(socket.EAI_AGAIN, "a trial of paceline tune has no network")
        return original(host, port, *args, **kwargs) if original.__name__ == "getaddrinfo" else original(host)

    return look_up


class _OwnAddresses:
    """The addresses, names and services of this machine."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._services = {int(port) for port in os.environ.get(SERVICES, "").split(",") if port}
        self._names: set[str] | None = None

    def is_peer(self, host: Any, port: Any, *, may_listen: bool = False) -> bool:
        """Return whether an address belongs to another program or host, and record it if so.

        Args:
            host: A name or an address.
            port: The port number.
            may_listen: Whether the program may want to listen at the address. A port in use then proves nothing.
        """
        name = host.decode() if isinstance(host, bytes) else str(host or "")
        here = name.lower() in _HERE or name.startswith("127.") or name.lower() in self._own_names()
        if here and (may_listen or port not in self._services):
            return False
        _tell(name, port if isinstance(port, int) else 0)
        return True

    def _own_names(self) -> set[str]:
        if self._names is None:
            name = self._socket.gethostname().lower()
            self._names = {name, name.partition(".")[0], *own_addresses()}
        return self._names


def _tell(host: str, port: int) -> None:
    if (host, port) in _told or len(_told) >= _MOST:
        return
    _told.add((host, port))
    folder = os.path.join(os.environ.get("PACELINE_WATCH_DIR", "."), FOLDER)
    try:
        os.makedirs(folder, exist_ok=True)
        handle = os.open(os.path.join(folder, f"{os.getpid()}.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, (json.dumps({"host": host, "port": port}) + "\n").encode())
        finally:
            os.close(handle)
    except OSError:
        return
