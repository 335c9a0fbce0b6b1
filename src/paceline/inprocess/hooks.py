"""What happens when something of ours fails? One warning line, every patch is undone, and the program goes on."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_undo: list[Callable[[], None]] = []
_installed: dict[str, None] = {}  # in order
_after_fault: list[Callable[[str], None]] = []
_faulted = False
_told_path: str | None = None


def installed() -> list[str]:
    """Return the names of torch and Python that stand for functions of ours in this process, in order."""
    return list(_installed)


def install(owner: Any, name: str, new: Any) -> None:
    """Put `new` at ``owner.name`` for the rest of the program, and list the name; ``owner`` is a module or a class."""
    place = owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__qualname__}"
    _installed[f"{place}.{name}"] = None
    setattr(owner, name, new)


def replace(owner: Any, name: str, new: Any) -> None:
    """Put `new` at ``owner.name``, list the name, and remember how to take it back."""
    old = vars(owner)[name] if name in vars(owner) else getattr(owner, name)

    def undo() -> None:
        if vars(owner).get(name) is new:  # unless the program has patched it since
            setattr(owner, name, old)

    install(owner, name, new)
    _undo.append(undo)


def on_undo(action: Callable[[], None]) -> None:
    """Register what else has to be taken back when watching stops."""
    _undo.append(action)


def on_fault(action: Callable[[str], None]) -> None:
    """Register who wants to know why watching stopped."""
    _after_fault.append(action)


def faulted() -> bool:
    """Say whether watching was switched off by a fault."""
    return _faulted


def fault(error: BaseException, where: str, *, in_folder: bool = True) -> None:
    """Switch watching off, once, with one line on stderr.

    Args:
        error: What happened.
        where: Which part of ours it happened in.
        in_folder: Whether the run's folder can be used, to warn once in a run and to write the reason down.

    Raises:
        BaseException: `error` itself, where a signal handler raised it: it belongs to the program.
    """
    global _faulted
    if raised_by_signal_handler(error):
        raise error
    if _faulted:
        return
    _faulted = True
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    undo_all()
    for action in _after_fault if in_folder else ():
        try:
            action(f"{where}: {reason}")
        except Exception:
            continue
    if not in_folder or _first_to_tell():
        _warn(f"paceline: watching stopped ({where}: {reason}); the program goes on")


def raised_by_signal_handler(error: BaseException) -> bool:
    """Say whether a signal interrupted our code and the signal's handler raised this.

    Python calls a handler with the frame that it interrupts: one function of the traceback has its caller's frame as
    an argument. A DataLoader tells in this way that a worker died; programs end what takes too long in this way.
    """
    entry = error.__traceback__
    while entry is not None and entry.tb_next is not None:
        interrupted, entry = entry.tb_frame, entry.tb_next
        if entry.tb_frame.f_code.co_filename.startswith(_OURS):
            continue
        for value in entry.tb_frame.f_locals.values():
            if value is interrupted or (type(value) is tuple and any(each is interrupted for each in value)):
                return True
    return False


def tell_once(path: str) -> None:
    """Name a file by which the processes of a run know whether one of them has warned already."""
    global _told_path
    _told_path = path


def _first_to_tell() -> bool:
    if _told_path is None:
        return True
    try:
        os.close(os.open(_told_path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


def undo_all() -> None:
    """Take every patch back."""
    while _undo:
        try:
            _undo.pop()()
        except Exception:
            continue


def _warn(line: str) -> None:
    try:
        os.write(2, (line.replace("\n", " ") + "\n").encode("utf-8", "replace"))
    except OSError:
        sys.exc_info()


def forget() -> None:
    """Drop the listeners, in a process that was forked."""
    _after_fault.clear()
