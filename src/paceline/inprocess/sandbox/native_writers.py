"""Redirect libraries that write files from C, where patches of Python's functions have no effect.

Each entry has the module, the function or method, the name and position of its path argument, and a function that
returns the new path. SQLite databases and HDF5 files may be modified, so they are copied.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from paceline.inprocess.sandbox.path_mapping import Overlay, there

_BESIDE = ("-wal", "-shm", "-journal")  # additional files of a SQLite database


@dataclass(frozen=True, kw_only=True)
class _Call:
    """A function that takes the path of a file, and the mapping that its path argument needs."""

    name: str  # within its module, such as "File.__init__"
    path: str  # name of the path argument
    place: int  # position of the path argument
    led: Callable[[Overlay, Any, Sequence[Any], Mapping[str, Any]], Any]  # (mapping, path, other arguments) -> new path


def _new(overlay: Overlay, path: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the path at which a new file is written."""
    return overlay.write(path, keep=False)


def _old(overlay: Overlay, path: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the path at which a file is read: in the trial's folder if the trial has written the file."""
    return overlay.read(path)


def _database(overlay: Overlay, path: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the path of a SQLite database; copy it with its additional files unless it is only read."""
    text = os.fsdecode(path)
    name, _, query = text.removeprefix("file:").partition("?")
    is_uri = bool(kwargs.get("uri")) and text.startswith("file:")
    if not text or ":memory:" in text or (is_uri and "mode=memory" in query):
        return path
    name = name if is_uri else text
    if is_uri and ("mode=ro" in query or "immutable=1" in query):
        found = overlay.read(name)
    else:
        for ending in _BESIDE:
            if there(os.fsdecode(overlay.read(name + ending))):
                overlay.write(name + ending, keep=True)
        found = overlay.write(name, keep=True)
    return f"file:{found}{'?' * bool(query)}{query}" if is_uri else found


def _hdf5(overlay: Overlay, path: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the path of an HDF5 file; it is the original path if the file is only read."""
    mode = kwargs.get("mode", args[0] if args else "r")
    return overlay.read(path) if mode in (None, "r") else overlay.write(path, keep=mode in ("r+", "a"))


_SQLITE = (_Call(name="connect", path="database", place=0, led=_database),)
_CALLS: Mapping[str, Sequence[_Call]] = {
    "sqlite3.dbapi2": _SQLITE,
    "sqlite3": _SQLITE,  # has the function of sqlite3.dbapi2 if that module was imported before
    "h5py._hl.files": (_Call(name="File.__init__", path="name", place=1, led=_hdf5),),
    "cv2": (
        _Call(name="imwrite", path="filename", place=0, led=_new),
        _Call(name="imread", path="filename", place=0, led=_old),
    ),
    "safetensors": (_Call(name="safe_open", path="filename", place=0, led=_old),),
    "safetensors.torch": (_Call(name="save_file", path="filename", place=1, led=_new),),
    "safetensors.numpy": (_Call(name="save_file", path="filename", place=1, led=_new),),
    "pyarrow.parquet.core": (
        _Call(name="ParquetWriter.__init__", path="where", place=1, led=_new),
        _Call(name="read_table", path="source", place=0, led=_old),
    ),
}
_OF_TORCH = (
    _Call(name="save", path="f", place=1, led=_new),
    _Call(name="load", path="f", place=0, led=_old),
    _Call(name="jit._script.RecursiveScriptModule.save", path="f", place=1, led=_new),
    _Call(name="jit.load", path="f", place=0, led=_old),
    _Call(name="profiler.profile.export_chrome_trace", path="path", place=1, led=_new),
)


def begin(overlay: Overlay) -> None:
    """Redirect the libraries to the trial's folder when the program imports them."""
    from paceline.inprocess import import_hook

    import_hook.install(
        {module: functools.partial(_lead, calls=calls, overlay=overlay) for module, calls in _CALLS.items()}
    )


def patch_torch(torch: Any, overlay: Overlay) -> None:
    """Redirect the files that torch writes from C to the trial's folder."""
    _lead(torch, _OF_TORCH, overlay)


def _lead(module: ModuleType, calls: Sequence[_Call], overlay: Overlay) -> None:
    for call in calls:
        *around, name = call.name.split(".")
        owner: Any = module
        for part in around:
            owner = getattr(owner, part, None)
        original = getattr(owner, name, None)
        if original is not None:
            setattr(owner, name, _led(original, call, overlay))


def _led(original: Any, call: _Call, overlay: Overlay) -> Any:
    @functools.wraps(original)
    def elsewhere(*args: Any, **kwargs: Any) -> Any:
        given = kwargs.get(call.path, args[call.place] if len(args) > call.place else None)
        if not isinstance(given, str | bytes | os.PathLike):
            return original(*args, **kwargs)
        path = call.led(overlay, given, args[call.place + 1 :], kwargs)
        if call.path in kwargs:
            return original(*args, **{**kwargs, call.path: path})
        return original(*args[: call.place], path, *args[call.place + 1 :], **kwargs)

    return elsewhere
