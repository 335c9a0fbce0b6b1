"""Install and undo patches. After a fault in Paceline's code, one warning appears and all patches are undone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_undo: list[Callable[[], None]] = []
_installed: dict[str, None] = {}  # a dict as an ordered set
_after_fault: list[Callable[[str], None]] = []
_faulted = False
_told_path: str | None = None


def installed() -> list[str]:
    """Return the names in torch and Python that Paceline has patched in this process, in the order of patching."""
    return list(_installed)


def install(owner: Any, name: str, new: Any) -> None:
    """Set ``owner.name`` to `new` for the rest of the program and list the name; ``owner`` is a module or a class."""
    place = owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__qualname__}"
    _installed[f"{place}.{name}"] = None
    setattr(owner, name, new)


def replace(owner: Any, name: str, new: Any) -> None:
    """Set ``owner.name`` to `new`, list the name, and register the undo."""
    old = vars(owner)[name] if name in vars(owner) else getattr(owner, name)

    def undo() -> None:
        if vars(owner).get(name) is new:  # keep a patch that the program has made since
            setattr(owner, name, old)

    install(owner, name, new)
    _undo.append(undo)


def on_undo(action: Callable[[], None]) -> None:
    """Register a function to call when all patches are undone."""
    _undo.append(action)


def on_fault(action: Callable[[str], None]) -> None:
    """Register a function to call with the reason after a fault in Paceline."""
    _after_fault.append(action)


def faulted() -> bool:
    """Return whether a fault in Paceline has stopped recording."""
    return _faulted


def fault(error: BaseException, where: str, *, in_folder: bool = True) -> None:
    """Stop recording after a fault in Paceline, with one line on stderr. Later calls have no effect.

    Args:
        error: The exception.
        where: The part of Paceline that raised the exception.
        in_folder: Whether the run's folder is usable. If so, the reason is stored in it, and only one process of the
            run prints the warning.

    Raises:
        BaseException: `error` itself, if a signal handler of the program raised it.
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
    """Return whether the program's signal handler raised this error while it interrupted Paceline's code.

    Python passes the interrupted frame to a signal handler. In the traceback, one function then has its caller's frame
    as an argument. A DataLoader reports a dead worker in this way, and programs implement timeouts in this way.
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
    """Set the path of a file that limits the warning to one per run: the first process to print it creates the file."""
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
    """Undo every patch."""
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
    """Remove the functions registered with `on_fault`, in a forked process."""
    _after_fault.clear()
