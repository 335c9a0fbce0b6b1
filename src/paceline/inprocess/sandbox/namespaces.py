"""Run a command with its own files and network, with Linux namespaces. This file runs as a program.

An overlay covers every file system: the command reads the existing files, and its writes, from any language and any
child process, go to a folder of the trial. ``/dev/shm`` is empty. The network has only the loopback interface and the
addresses of this machine. Process ids are unchanged. The file imports only the standard library.

    python -I namespaces.py SPEC -- COMMAND…

SPEC is a JSON object:

- ``uppers``: folders for the written files; an overlay uses the first one that is outside the folder it covers
- ``free``: folders that are read and written directly
- ``replace``: path -> file that replaces the file at this path
- ``network``: whether the command keeps the network of this machine
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import socket
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

try:
    import resource
except ModuleNotFoundError:  # Windows: no namespaces there either, but `network` needs `own_addresses`
    resource = None  # type: ignore[assignment]

FAILED = 125  # exit code if the namespaces cannot be created
_NEWNS, _NEWIPC, _NEWUSER, _NEWNET = 0x00020000, 0x08000000, 0x10000000, 0x40000000
_RDONLY, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 32, 4096, 16384, 1 << 18
_KEPT_FLAGS = {"ro": 1, "nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024, "nodiratime": 2048, "relatime": 1 << 21}
_SPECIAL = ("/proc", "/sys", "/dev")
_GONE = (FileNotFoundError, NotADirectoryError)
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 POSIX defines the path
_CAP_SYS_ADMIN = 21
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_SIOCSIFFLAGS, _IFF_UP_RUNNING = 0x8914, 0x41
_RTM_NEWADDR, _ADDRESS_FLAGS, _IFA_ADDRESS, _IFA_LOCAL = 20, 0x1 | 0x4 | 0x200 | 0x400, 1, 2


def command_of(spec: Mapping[str, Any], command: Sequence[str]) -> list[str]:
    """Return the command line that runs a command in isolation."""
    return [sys.executable, "-I", str(Path(__file__)), json.dumps(spec), "--", *command]


def own_addresses() -> list[str]:
    """Return the IPv4 and IPv6 addresses of this machine, without loopback addresses."""
    found = re.findall(r"\|-- ([\d.]+)\n\s+/32 host LOCAL", _text("/proc/net/fib_trie"))
    for line in _text("/proc/net/if_inet6").splitlines():
        packed, _, _, scope, *_ = line.split()
        if scope == "00":
            found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(packed)))
    return [address for address in dict.fromkeys(found) if not address.startswith("127.")]


def main(arguments: Sequence[str]) -> None:
    """Isolate this process and replace it by the command.

    Raises:
        OSError: The kernel refuses.
    """
    spec, _, *command = arguments
    wanted = json.loads(spec)
    here, addresses = os.getcwd(), own_addresses()
    _enter(keeps_network=wanted["network"])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))  # three open files for each folder
    _cover(wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    if not wanted["network"]:
        _raise_loopback(addresses)
        _name_this_machine(addresses, wanted["uppers"][0])
        os.environ.update({name: "lo" for name in _INTERFACES if name in os.environ})
    os.chdir(here)
    os.execvp(command[0], command)  # noqa: S606 the purpose of this program


# -- namespaces --------------------------------------------------------------------------------------

_libc = ctypes.CDLL(None, use_errno=True)


def _enter(*, keeps_network: bool) -> None:
    user, group = os.geteuid(), os.getegid()
    wanted = _NEWNS | _NEWIPC | (0 if keeps_network else _NEWNET)
    if _is_admin() and _libc.unshare(wanted) == 0:
        return
    _called(_libc.unshare(wanted | _NEWUSER), "unshare")
    with suppress(OSError):
        _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/gid_map", f"{group} {group} 1")


def _is_admin() -> bool:
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", _text("/proc/self/status"), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> _CAP_SYS_ADMIN & 1)


# -- files -------------------------------------------------------------------------------------------


def _cover(wanted: Mapping[str, Any]) -> None:
    """Cover all file systems, then mount the free folders on top."""
    _mount(None, "/", None, _REC | _PRIVATE)
    is_user_namespace = _text("/proc/self/uid_map").split() != ["0", "0", "4294967295"]
    mounts = [place for place in _mount_points() if not _is_special(place)]
    layers = _Layers(wanted["uppers"], mounts, "userxattr" if is_user_namespace else "")
    free = [(place, os.open(place, os.O_PATH)) for place in sorted(wanted["free"], key=len)]
    for place in mounts:
        layers.plan(place)
    layers.lay()
    for place, handle in free:
        _mount(f"/proc/self/fd/{handle}", place, None, _BIND)
    for place, other in wanted["replace"].items():
        _mount(other, place, None, _BIND)
    _mount("tmpfs", _SHARED_MEMORY, "tmpfs", 6, "mode=1777")


class _Layers:
    """The overlays. All folders are opened before the first overlay is mounted, because it hides other folders."""

    def __init__(self, uppers: Sequence[str], mounts: Sequence[str], options: str) -> None:
        self._uppers = [os.path.realpath(one) for one in uppers]
        self._mounts = mounts
        self._options = options
        self._planned: list[tuple[str, int, str]] = []  # path, file descriptor and overlay options ("" for none)

    def plan(self, place: str) -> None:
        """Plan an overlay for a folder.

        If a folder contains other mounts or all upper folders, an overlay is planned for each of its subfolders.
        """
        below = f"{place.rstrip('/')}/"
        outside = [one for one in self._uppers if not f"{one}/".startswith(below)]
        lower = os.open(place, os.O_PATH)
        if outside and not any(one.startswith(below) for one in self._mounts):
            self._planned.append((place, lower, self._overlay(lower, outside[0])))
            return
        if place != "/":
            self._planned.append((place, lower, ""))
        for entry in sorted(os.scandir(place), key=lambda one: one.name):
            path = os.path.join(place, entry.name)
            if entry.is_dir(follow_symlinks=False) and path not in self._mounts and path not in _SPECIAL:
                with suppress(PermissionError, *_GONE):
                    self.plan(path)

    def lay(self) -> None:
        """Mount all planned overlays. A folder on which no overlay can be mounted becomes read-only.

        A folder that another program has removed meanwhile needs neither: the folder above it is read-only.
        """
        for place, lower, options in self._planned:
            if options:
                with suppress(OSError):
                    _mount("overlay", place, "overlay", 0, options)
                    continue
            with suppress(*_GONE):
                _read_only(place, lower)

    def _overlay(self, lower: int, above: str) -> str:
        """Create the folders that receive the changes of a lower folder; return the mount options of the overlay."""
        folder = os.path.join(above, f"{len(self._planned):03d}")
        for name in ("upper", "work"):
            os.makedirs(os.path.join(folder, name), exist_ok=True)
        upper, state = os.path.join(folder, "upper"), os.fstat(lower)
        os.chmod(upper, state.st_mode & 0o7777)
        with suppress(OSError):
            os.chown(upper, state.st_uid, state.st_gid)
        work = os.open(os.path.join(folder, "work"), os.O_PATH)
        handles = {"lowerdir": lower, "upperdir": os.open(upper, os.O_PATH), "workdir": work}
        return ",".join([*(f"{key}=/proc/self/fd/{fd}" for key, fd in handles.items()), *self._options.split()])


def _read_only(place: str, handle: int) -> None:
    """Mount a folder read-only and keep its other mount options."""
    _mount(f"/proc/self/fd/{handle}", place, None, _BIND | _REC)
    flags = sum(_KEPT_FLAGS.get(name, 0) for name in _options_of(place))
    _mount(None, place, None, _REMOUNT | _BIND | _RDONLY | flags)


def _mount_points() -> list[str]:
    """Return the mount points that are folders, the outermost first."""
    found = [_unescaped(line.split()[4]) for line in _text("/proc/self/mountinfo").splitlines()]
    return sorted({place for place in found if _is_folder(place)}, key=lambda one: (one.count("/"), one))


def _is_folder(place: str) -> bool:
    return os.path.isdir(place) and os.access(place, os.X_OK)


def _options_of(place: str) -> list[str]:
    lines = [line.split() for line in _text("/proc/self/mountinfo").splitlines()]
    return [option for one in lines if _unescaped(one[4]) == place for option in one[5].split(",")]


def _unescaped(path: str) -> str:
    return re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), path)


def _is_special(place: str) -> bool:
    return any(place == one or place.startswith(f"{one}/") for one in _SPECIAL)


# -- network -----------------------------------------------------------------------------------------


def _raise_loopback(addresses: Iterable[str]) -> None:
    """Bring the loopback interface up with this machine's addresses: ranks may connect to one of them."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP_RUNNING))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link:
        for address in addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            packed = socket.inet_pton(family, address)
            body = struct.pack("BBBBI", family, 8 * len(packed), 0, 0, 1)
            for kind in (_IFA_LOCAL, _IFA_ADDRESS):
                body += struct.pack("HH", 4 + len(packed), kind) + packed
            link.send(struct.pack("IHHII", 16 + len(body), _RTM_NEWADDR, _ADDRESS_FLAGS, 1, 0) + body)
            link.recv(4096)


def _name_this_machine(addresses: Sequence[str], folder: str) -> None:
    """Map the name of this machine to its address in /etc/hosts, because no name server is reachable."""
    name, known = socket.gethostname(), _text("/etc/hosts")
    if name in known.split() or not os.path.isfile("/etc/hosts"):
        return
    hosts = os.path.join(folder, "hosts")
    _write(hosts, f"{known}\n{addresses[0] if addresses else '127.0.0.1'} {name}\n")
    _mount(hosts, "/etc/hosts", None, _BIND)


# -- system calls ------------------------------------------------------------------------------------


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    given = [None if one is None else os.fsencode(one) for one in (source, target, kind)]
    data = None if options is None else os.fsencode(options)
    _called(_libc.mount(*given, ctypes.c_ulong(flags), data), f"mount on {target}")


def _called(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as error:
        sys.stderr.write(f"paceline: cannot isolate: {error.filename}: {error.strerror}\n")
        sys.exit(FAILED if error.filename != sys.argv[3] else 127)
