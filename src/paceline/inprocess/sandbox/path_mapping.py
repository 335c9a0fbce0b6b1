"""Where do paths lead in a trial? What is written lies below the trial's folder; what was there before is only read.

As in an overlay file system: a path is read from the trial's folder where it is there, else from where it was, unless
the trial has deleted it or a folder around it. Standard library only; the functions of `os` are taken as they were
before anything stood in for them.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_lstat, _stat, _listdir, _scandir, _mkdir, _open = os.lstat, os.stat, os.listdir, os.scandir, os.mkdir, open
_rmdir = os.rmdir
_ROOM = 0.5  # of what is free on the disk: a file larger than this is not copied


class Overlay:
    """Where paths really lead, in this process."""

    def __init__(self, folder: str, free: Sequence[str], is_later: Callable[[str], bool] | None = None) -> None:
        """Lay a folder over everything but itself and the places that are free.

        Args:
            folder: Where what is written goes.
            free: Folders that are read and written as they are.
            is_later: Whether a path was made by others since this one began, and is not to be seen.
        """
        self._is_later = is_later
        self.folder = folder.rstrip("/")
        self._free = tuple(f"{place.rstrip('/')}/" for place in (self.folder, *free))
        self._hidden: set[str] = set()  # places below which nothing of before is seen

    def place(self, path: Any) -> str | None:
        """Return where a path lies in the trial's folder; None for what may be written as it is."""
        if isinstance(path, int):
            return None
        real = _real(path)
        return None if f"{real}/".startswith(self._free) else self.folder + real

    def read(self, path: Any) -> Any:
        """Return the path to read from."""
        place = self.place(path)
        if place is None:
            return path
        if there(place) or self._hides(place):  # of what was deleted: a path where nothing is
            return place
        return path if os.path.isabs(path) else _real(path)

    def enter(self, path: Any) -> Any:
        """Return the folder to work in: the one of before where it is left, for C libraries look there."""
        place = self.place(path)
        if place is None:
            return path
        return _real(path) if _is_folder(_real(path)) and not self._hides(place) else place

    def write(self, path: Any, *, keep: bool) -> Any:
        """Return the path to write to; `keep`: what is there already counts, of a folder only that it is there."""
        place = self.place(path)
        if place is None:
            return path
        real = _real(path)
        if _is_folder(self.read(os.path.dirname(real))):
            make_folders(os.path.dirname(place))
        if keep and not there(place) and not self._hides(place):
            _bring(real, place)
        return place

    def delete(self, path: Any, remove: Callable[[Any], None]) -> None:
        """Forget a path; only what the trial wrote itself is really removed."""
        place = self.place(path)
        if place is None:
            remove(path)
            return
        self._check_removable(path, as_folder=remove is _rmdir)
        if there(place):
            remove(place)
        if there(_real(path)):
            self._hidden.add(place)

    def move(self, source: Any, target: Any, rename: Callable[[Any, Any], None]) -> None:
        """Rename a path; what was there before is copied, and only forgotten where it was."""
        old, new = self.place(source), self.place(target)
        if old is not None:
            self._bring_all(_real(source), old)
        rename(source if old is None else old, self.write(target, keep=False))
        self._hidden |= {place for place in (old, new) if place is not None}

    def link(self, source: Any, target: Any, symlink: Callable[[Any, Any], None]) -> None:
        """Make a link that leads into the trial's folder: what is written through it must not be written elsewhere."""
        if there(os.fsdecode(self.read(target))):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), source, None, target)
        if self.place(target) is None:
            symlink(source, target)
            return
        origin = os.path.join(os.path.dirname(_real(target)), os.fsdecode(source))
        symlink(self.write(origin, keep=True), self.write(target, keep=False))

    def names(self, path: Any) -> list[str]:
        """Return the names in a folder: those of before and those of the trial, without what was deleted."""
        place, seen = self.place(path), self.read(path)
        if place is None or not _is_folder(seen):
            return _listdir(seen)  # raises as it should where no folder is
        old = [] if self._hides(place) or not _is_folder(_real(path)) else _listdir(_real(path))
        own = _listdir(place) if _is_folder(place) else []
        if self._is_later is not None:
            old = [name for name in old if not self._is_later(f"{_real(path)}/{name}")]
        return [*dict.fromkeys([*(n for n in old if f"{place}/{n}" not in self._hidden), *own])]

    def entries(self, path: Any) -> list[Any]:
        """Return the entries of a folder as ``os.scandir`` gives them; of a name in both, the trial's."""
        names, place = set(self.names(path)), self.place(path)
        found: dict[str, Entry] = {}
        for folder in (_real(path), place):
            if folder is None or not _is_folder(folder):
                continue
            with _scandir(folder) as listed:
                found |= {entry.name: Entry(path, entry) for entry in listed if entry.name in names}
        return list(found.values())

    def _hides(self, place: str) -> bool:
        """Say whether nothing of before is seen there: it was deleted, or a folder around it was, or it is later."""
        if self._is_later is not None and self._is_later(place[len(self.folder) :]):
            return True
        while self._hidden and len(place) > len(self.folder):
            if place in self._hidden:
                return True
            place = os.path.dirname(place)
        return False

    def _check_removable(self, path: Any, *, as_folder: bool) -> None:
        """Raise what removing would raise: nothing there, a folder where a file should be, a folder with something."""
        seen = self.read(path)
        is_folder = stat.S_ISDIR(_lstat(seen).st_mode)
        if as_folder and not is_folder:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        if is_folder and not as_folder:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if is_folder and self.names(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)

    def _bring_all(self, real: str, place: str) -> None:
        """Copy what was there before and is not in the trial's folder yet, whole folders too."""
        if _is_folder(self.read(real)) and not os.path.islink(real):
            make_folders(place)
            for name in self.names(real):
                self._bring_all(f"{real}/{name}", f"{place}/{name}")
        elif not self._hides(place):
            self.write(real, keep=True)


class Entry:
    """An entry of a folder under the path that the program knows, wherever it lies."""

    def __init__(self, folder: Any, entry: os.DirEntry[str]) -> None:
        self.name = entry.name
        self.path = os.path.join(os.fsdecode(folder), entry.name)
        self._entry = entry

    def __fspath__(self) -> str:
        return self.path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)


class Entries:
    """What iterates over entries and may be used as a context, as what ``os.scandir`` returns."""

    def __init__(self, entries: Sequence[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is held open."""


def there(path: str) -> bool:
    """Say whether there is anything at a path, a link that leads nowhere too."""
    try:
        _lstat(path)
    except (OSError, ValueError):
        return False
    return True


def make_folders(path: str) -> None:
    """Make a folder and those around it, where they are not there yet."""
    if there(path):
        return
    make_folders(os.path.dirname(path))
    try:
        _mkdir(path)
    except FileExistsError:
        return


def _real(path: Any) -> str:
    return os.path.abspath(os.fsdecode(path))


def _is_folder(path: Any) -> bool:
    try:
        return stat.S_ISDIR(_stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _bring(real: str, place: str) -> None:
    """Copy a file; of a folder make an empty one that stands for it."""
    if _is_folder(real):
        make_folders(place)
    elif there(real):
        _check_room(real, place)
        with _open(real, "rb") as old, _open(place, "wb") as new:
            shutil.copyfileobj(old, new)


def _check_room(real: str, place: str) -> None:
    """Raise where a copy would fill the disk.

    Raises:
        OSError: The file takes more than half of what is free.
    """
    disk = os.statvfs(os.path.dirname(place))
    if _stat(real).st_size > _ROOM * disk.f_bavail * disk.f_frsize:
        raise OSError(errno.ENOSPC, "a trial changes a copy of this file, and there is no room for one", real)
