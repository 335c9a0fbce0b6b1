"""Isolation of trials from files and services: by the kernel if possible, otherwise by a sandbox in Python.

Under isolation by the kernel (`inprocess.sandbox.namespaces`), a trial has an overlay over each file system, and its
own ``/dev/shm`` and network. In the Python sandbox, Python's file functions are redirected
(`inprocess.sandbox.write_sandbox`) and connections of Python's sockets are refused. The limits of the sandbox are
printed before the first trial.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.inprocess import settings
from paceline.inprocess.sandbox import namespaces, network

_PROBE_S = 20.0
_BESIDES = "/var/tmp"  # noqa: S108 for what a trial writes to where its own folders lie
_LISTENS = "0A"  # the state LISTEN in /proc/net/tcp
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
_NOWHERE = {  # settings that keep experiment trackers from writing to their services
    "WANDB_MODE": "disabled",
    "COMET_START_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
}
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
NOT_ISOLATED = (
    "it redirects the files that Python code writes, and refuses connections of Python's sockets; it does not hold "
    "back other programs that the program starts (os.system, subprocess), nor C and Rust libraries that open files or "
    "connections themselves"
)


@dataclass(frozen=True, kw_only=True)
class Isolation:
    """How trials are isolated."""

    by_kernel: bool
    why_not: str = ""  # why the kernel does not isolate trials
    allows_network: bool = False
    # replacement file by replaced file; only with isolation by the kernel
    replaced: Mapping[str, str] = field(default_factory=dict)
    services: frozenset[int] = field(default_factory=frozenset)  # TCP ports of this machine on which a process listens

    def command(self, command: Sequence[str], folder: Path, place: Path, stack: ExitStack) -> list[str]:
        """Return the command line of a trial.

        Args:
            command: The command of the program.
            folder: The folder of the trial's record.
            place: A folder for temporary files.
            stack: Receives the callbacks that remove temporary folders.
        """
        if not self.by_kernel:
            return list(command)
        shared = folder.parent / "inductor"
        shared.mkdir(exist_ok=True)
        spec = _spec(folder, place, stack, network=self.allows_network)
        spec["free"], spec["replace"] = [str(folder), str(place), str(shared)], dict(self.replaced)
        return namespaces.command_of(spec, command)

    def variables(self, folder: Path) -> dict[str, str]:
        """Return the environment variables that isolate the processes of a trial."""
        found: dict[str, str] = {} if self.by_kernel else {settings.SCRATCH: str(folder / "scratch")}
        found |= {
            settings.TRACKERS_OFF: "1",
            **_NOWHERE,
            "MLFLOW_TRACKING_URI": (folder / "scratch" / "mlflow").as_uri(),
        }
        if not self.allows_network:
            found |= {
                network.MODE: "record" if self.by_kernel else "refuse",
                network.SERVICES: ",".join(map(str, sorted(self.services))),
                **{name: value for name, value in _OFFLINE.items() if name not in os.environ},
            }
        return found

    def in_words(self) -> str:
        """Return a sentence on how trials are isolated, and on the limits of the isolation."""
        if self.by_kernel:
            what = "" if self.allows_network else " and have no network"
            return f"trials are isolated by the kernel: they see files, but change only copies of them{what}"
        return f"trials run in a sandbox in Python, because {self.why_not}; {NOT_ISOLATED}"


IN_PYTHON = Isolation(by_kernel=False, why_not="it was not asked for", allows_network=True)


def isolation_for(folder: Path, cwd: Path, *, allows_network: bool, not_by_kernel: str = "") -> Isolation:
    """Return how trials are isolated: by the kernel if a test process can be isolated, otherwise in Python.

    Args:
        folder: The folder of all trials.
        cwd: Working directory of the program.
        allows_network: Whether trials are allowed to use the network.
        not_by_kernel: Why the user does not want isolation by the kernel; empty if the user wants it.
    """
    why_not = not_by_kernel or _why_not_by_kernel(folder, cwd, allows_network)
    return Isolation(
        by_kernel=not why_not,
        why_not=why_not,
        allows_network=allows_network,
        services=frozenset() if allows_network else frozenset(listening_ports()),
    )


def _why_not_by_kernel(folder: Path, cwd: Path, allows_network: bool) -> str:
    """Start an isolated test process. Return why the kernel cannot isolate it, or an empty string if it can."""
    owner = cwd.stat()
    if os.geteuid() != 0 and (owner.st_uid, owner.st_gid) != (os.geteuid(), os.getegid()):
        return f"{cwd} belongs to another user or group"
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-", ignore_cleanup_errors=True)))
        probe = folder / "probe"
        probe.mkdir(parents=True, exist_ok=True)
        stack.callback(remove_tree, probe)
        spec = _spec(probe, place, stack, network=allows_network)
        spec["free"] = [str(place)]
        name = f"paceline-probe-{os.getpid()}"
        tried = namespaces.command_of(spec, ["sh", "-c", f"echo > {name} && echo > {_SHARED_MEMORY / name}"])
        try:
            done = subprocess.run(tried, cwd=cwd, capture_output=True, text=True, timeout=_PROBE_S, check=False)
        except (OSError, subprocess.SubprocessError) as error:
            return f"a process could not be isolated ({error})"
        leaked = [path for path in (cwd / name, _SHARED_MEMORY / name) if path.exists()]
        for path in leaked:
            path.unlink()
    if done.returncode or leaked:
        said = done.stderr.strip().splitlines()
        return said[-1].removeprefix("paceline: ") if said else "the kernel did not redirect a file"
    return ""


def _spec(folder: Path, place: Path, stack: ExitStack, *, network: bool) -> dict[str, Any]:
    uppers = [folder / "scratch", *_extra_overlay_folders(stack), place / "scratch"]
    for upper in uppers:
        upper.mkdir(parents=True, exist_ok=True)
    return {"uppers": [str(upper.resolve()) for upper in uppers], "free": [], "replace": {}, "network": network}


def _extra_overlay_folders(stack: ExitStack) -> list[Path]:
    with suppress(OSError):
        made = Path(tempfile.mkdtemp(prefix="paceline-", dir=_BESIDES))
        stack.callback(remove_tree, made)
        return [made]
    return []


def remove_tree(folder: Path) -> None:
    """Remove a folder with all its contents, also subfolders without permissions, such as those of an overlay."""

    def open_up(remove: Callable[..., Any], path: str, _: Any) -> None:
        with suppress(OSError):
            os.chmod(path, 0o700)
            remove(path)

    shutil.rmtree(folder, onerror=open_up)


def listening_ports() -> set[int]:
    """Return the TCP ports of this machine on which a process listens."""
    found = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{name}").read_text(encoding="utf-8").splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS:
                    found.add(int(fields[1].rpartition(":")[2], 16))
    return found


def network_peers(folder: Path) -> list[str]:
    """Return the network addresses that a trial tried to connect to, such as ``api.wandb.ai:443``."""
    said = [json.loads(x) for p in (folder / network.FOLDER).glob("*.jsonl") for x in p.read_text().splitlines()]
    return sorted({f"{one['host']}:{one['port']}" if one["port"] else str(one["host"]) for one in said})


def list_peers(peers: Sequence[str]) -> str:
    """Return the first five addresses as text, with the number of further addresses."""
    more = f" and {len(peers) - 5} more" if len(peers) > 5 else ""
    return ", ".join(peers[:5]) + more


def shared_memory() -> set[str]:
    """Return the names of the files in ``/dev/shm``."""
    try:
        return set(os.listdir(_SHARED_MEMORY))
    except OSError:
        return set()


def shared_memory_of(pids: Sequence[int]) -> set[str]:
    """Return the names of the files in ``/dev/shm`` that some processes have open or mapped."""
    found: set[str] = set()
    for pid in pids:
        with suppress(OSError):
            maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
            found |= set(re.findall(r"/dev/shm/(\S+?)(?: \(deleted\))?$", maps, re.MULTILINE))
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    target = os.readlink(link)
                    found |= {target.removeprefix("/dev/shm/")} if target.startswith("/dev/shm/") else set()
    return {name for name in found if "/" not in name}


def remove_shared_memory(names: set[str]) -> None:
    """Remove the files with these names from ``/dev/shm``, if they still exist."""
    for name in names:
        with suppress(OSError):
            (_SHARED_MEMORY / name).unlink()
