"""How does a trial leave nothing behind? What the program writes goes to a folder of the trial's.

A path that is written is moved below that folder, and read from there from then on; what was there before is copied
first when it is changed in place. What the program deletes is only forgotten. This covers Python's own file functions,
``torch.save`` and safetensors, in this process and those it starts, from the import of torch on; what a library writes
from C by a path of its own is not seen.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

_FREE = ("/dev/", "/proc/", "/sys/")
_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Shadow:
    """Where paths really lead, in this process."""

    def __init__(self, folder: str, free: tuple[str, ...]) -> None:
        self._folder = folder
        self._free = (*_FREE, *(place.rstrip("/") + "/" for place in (folder, *free)))
        self._gone: set[str] = set()

    def below(self, path: Any) -> str | None:
        """Return where a path lies in the trial's folder; None for what may be written as it is."""
        if isinstance(path, int):
            return None
        real = os.path.abspath(os.fsdecode(path))
        if f"{real}/".startswith(self._free):
            return None
        return self._folder + real

    def read(self, path: Any) -> Any:
        """Return the path to read from."""
        place = self.below(path)
        if place is None:
            return path
        if _there(place):
            return place
        return place if place in self._gone else path  # of what was deleted: a path where nothing is

    def write(self, path: Any, *, keep: bool) -> Any:
        """Return the path to write to; `keep`: what is there already counts."""
        place = self.below(path)
        if place is None:
            return path
        parent = os.path.dirname(os.fsdecode(path)) or "."
        if _real_is_folder(parent):
            _make_folders(os.path.dirname(place))
        if keep and not _there(place) and place not in self._gone and _there(os.fsdecode(path)):
            _copy(os.fsdecode(path), place)
        self._gone.discard(place)
        return place

    def delete(self, path: Any, remove: Callable[[str], None]) -> None:
        """Forget a path; only what the trial wrote itself is really removed."""
        place = self.below(path)
        if place is None:
            remove(path)
            return
        real = _there(os.fsdecode(path)) and place not in self._gone
        if not _there(place) and not real:
            remove(place)  # raises as it should: there is no such file
        if _there(place):
            remove(place)
        if real:
            self._gone.add(place)

    def move(self, source: Any, target: Any, rename: Callable[..., None]) -> None:
        """Rename a path; what was there before is copied, and only forgotten where it was."""
        old = self.below(source)
        if old is None and self.below(target) is None:
            rename(source, target)
            return
        rename(self.write(source, keep=True), self.write(target, keep=False))
        if old is not None and _there(os.fsdecode(source)):
            self._gone.add(old)

    def names(self, path: Any, listed: list[str]) -> list[str]:
        """Return the names in a folder: those that are listed and those of the trial, without what was deleted."""
        place = self.below(path)
        if place is None:
            return listed
        own = _listdir(place) if _there(place) else []
        return [n for n in dict.fromkeys([*listed, *own]) if f"{place}/{n}" not in self._gone]


_there = os.path.lexists
_listdir = os.listdir
_mkdir = os.mkdir
_open = os.open


def patch(torch: Any, folder: str) -> None:
    """Have everything that is written from now on go to the trial's folder."""
    shadow = Shadow(folder, tuple(p for p in (os.environ.get("PACELINE_WATCH_DIR"), os.environ.get("TMPDIR")) if p))
    global _there  # noqa: PLW0603 the functions as they were, before we stand in for what they call
    stat, lstat = os.stat, os.lstat
    _there = functools.partial(_lexists, lstat)
    _patch_open(shadow)
    _patch_reading(shadow, stat, lstat)
    _patch_changing(shadow)
    _patch_torch(torch, shadow)


def _lexists(lstat: Any, path: str) -> bool:
    try:
        lstat(path)
    except OSError:
        return False
    return True


def _real_is_folder(path: str) -> bool:
    return os.path.isdir(path)


def _make_folders(path: str) -> None:
    if not _there(path):
        _make_folders(os.path.dirname(path))
        try:
            _mkdir(path)
        except FileExistsError:
            return


def _copy(source: str, target: str) -> None:
    with _builtin_open(source, "rb") as old, _builtin_open(target, "wb") as new:
        shutil.copyfileobj(old, new)


_builtin_open = builtins.open


def _patch_open(shadow: Shadow) -> None:
    @functools.wraps(_builtin_open)
    def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, int) or kwargs.get("opener") is not None:
            return _builtin_open(file, mode, *args, **kwargs)
        writes = any(letter in mode for letter in "wax+")
        if "x" in mode and _there(os.fsdecode(shadow.read(file))):
            raise FileExistsError(17, "File exists", file)
        place = shadow.write(file, keep="w" not in mode and "x" not in mode) if writes else shadow.read(file)
        return _builtin_open(place, mode, *args, **kwargs)

    @functools.wraps(_open)
    def os_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None:
            return _open(path, flags, mode, dir_fd=dir_fd)
        if flags & _CHANGES:
            if flags & os.O_EXCL and _there(os.fsdecode(shadow.read(path))):
                raise FileExistsError(17, "File exists", path)
            return _open(shadow.write(path, keep=not flags & os.O_TRUNC), flags, mode)
        return _open(shadow.read(path), flags, mode)

    builtins.open = io.open = open_
    os.open = os_open


def _patch_reading(shadow: Shadow, stat: Any, lstat: Any) -> None:
    def reading(original: Any) -> Any:
        @functools.wraps(original)
        def read(path: Any, *args: Any, **kwargs: Any) -> Any:
            return original(path if kwargs.get("dir_fd") is not None else shadow.read(path), *args, **kwargs)

        return read

    for name, original in (("stat", stat), ("lstat", lstat), ("access", os.access), ("readlink", os.readlink)):
        setattr(os, name, reading(original))
    scandir = os.scandir

    @functools.wraps(_listdir)
    def listdir(path: Any = ".") -> Any:
        if isinstance(path, int):
            return _listdir(path)
        real = _listdir(path) if _there(os.fsdecode(path)) or shadow.below(path) is None else []
        return shadow.names(path, real)

    @functools.wraps(scandir)
    def scan(path: Any = ".") -> Any:
        place = None if isinstance(path, int) else shadow.below(path)
        if place is None:
            return scandir(path)
        entries = [*(scandir(path) if _there(os.fsdecode(path)) else ()), *(scandir(place) if _there(place) else ())]
        left = set(shadow.names(path, [entry.name for entry in entries]))
        return _Entries([entry for entry in entries if entry.name in left])

    os.listdir, os.scandir = listdir, scan


class _Entries:
    """The entries of a folder and of its shadow, as ``os.scandir`` gives them; of a name in both, the shadow's."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter({entry.name: entry for entry in entries}.values())

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is held open."""


def _patch_changing(shadow: Shadow) -> None:
    remove, rmdir = os.remove, os.rmdir

    @functools.wraps(_mkdir)
    def mkdir(path: Any, mode: int = 0o777, **kwargs: Any) -> None:
        if _there(os.fsdecode(shadow.read(path))):
            raise FileExistsError(17, "File exists", path)
        _mkdir(shadow.write(path, keep=False), mode, **kwargs)

    def deleting(original: Any) -> Any:
        @functools.wraps(original)
        def delete(path: Any, *, dir_fd: int | None = None) -> None:
            if dir_fd is not None:
                original(path, dir_fd=dir_fd)
            else:
                shadow.delete(path, original)

        return delete

    os.mkdir, os.remove, os.unlink, os.rmdir = mkdir, deleting(remove), deleting(remove), deleting(rmdir)
    _patch_moving(shadow)


def _patch_moving(shadow: Shadow) -> None:
    rename = os.rename

    @functools.wraps(rename)
    def move(source: Any, target: Any, **kwargs: Any) -> None:
        if kwargs:
            rename(source, target, **kwargs)
        else:
            shadow.move(source, target, rename)

    def touching(original: Any) -> Any:
        @functools.wraps(original)
        def touch(path: Any, *args: Any, **kwargs: Any) -> Any:
            return original(shadow.write(path, keep=True), *args, **kwargs)

        return touch

    for name in ("rename", "replace"):
        setattr(os, name, move)
    for name in ("utime", "chmod", "truncate"):
        setattr(os, name, touching(getattr(os, name)))


def _patch_torch(torch: Any, shadow: Shadow) -> None:
    save, load = torch.save, torch.load

    @functools.wraps(save)
    def saving(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        return save(obj, shadow.write(f, keep=False) if isinstance(f, str | os.PathLike) else f, *args, **kwargs)

    @functools.wraps(load)
    def loading(f: Any, *args: Any, **kwargs: Any) -> Any:
        return load(shadow.read(f) if isinstance(f, str | os.PathLike) else f, *args, **kwargs)

    torch.save, torch.load = saving, loading
    from paceline.observe.probe import lazy

    lazy.install({"safetensors.torch": lambda module: _patch_safetensors(module, shadow)})


def _patch_safetensors(module: Any, shadow: Shadow) -> None:
    save = module.save_file

    @functools.wraps(save)
    def save_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        return save(tensors, shadow.write(filename, keep=False), *args, **kwargs)

    module.save_file = save_file
