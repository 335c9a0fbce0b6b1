"""Map paths in a trial: written files are in the trial's folder, existing files are only read.

As in an overlay file system, a path is read from the trial's folder if it exists there, and else from its original
place, unless the trial has deleted it or a parent folder. This module imports only the standard library, and uses the
functions of `os` from before they were patched.
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
_ROOM = 0.5  # largest share of the free disk space that a copied file may take


class Overlay:
    """The mapping of paths in this process."""

    def __init__(self, folder: str, free: Sequence[str], is_later: Callable[[str], bool] | None = None) -> None:
        """Create the mapping from the file system to a folder.

        Args:
            folder: The folder for written files.
            free: Folders that are read and written directly.
            is_later: Whether another process created a path after the start of this one; such a path is hidden.
        """
        self._is_later = is_later
        self.folder = folder.rstrip("/")
        self._free = tuple(f"{place.rstrip('/')}/" for place in (self.folder, *free))
        self._hidden: set[str] = set()  # paths below which existing files are hidden

    def place(self, path: Any) -> str | None:
        """Return the path in the trial's folder, or None for a path that may be written directly."""
        if isinstance(path, int):
            return None
        real = _real(path)
        return None if f"{real}/".startswith(self._free) else self.folder + real

    def read(self, path: Any) -> Any:
        """Return the path of the file to read: in the trial's folder, or the original."""
        place = self.place(path)
        if place is None:
            return path
        if there(place) or self._hides(place):  # for a deleted file, this path does not exist
            return place
        return path if os.path.isabs(path) else _real(path)

    def enter(self, path: Any) -> Any:
        """Return the folder to work in: the original folder unless it was deleted, because C libraries use it."""
        place = self.place(path)
        if place is None:
            return path
        return _real(path) if _is_folder(_real(path)) and not self._hides(place) else place

    def write(self, path: Any, *, keep: bool) -> Any:
        """Return the path to write to. With `keep`, an existing file is copied; an existing folder starts empty."""
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
        """Delete a path in the trial's view. Only files that the trial wrote are really removed."""
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
        """Rename a path. Existing files are copied to the new path, and hidden at the old one."""
        old, new = self.place(source), self.place(target)
        if old is not None:
            self._bring_all(_real(source), old)
        rename(source if old is None else old, self.write(target, keep=False))
        self._hidden |= {place for place in (old, new) if place is not None}

    def link(self, source: Any, target: Any, symlink: Callable[[Any, Any], None]) -> None:
        """Create a symbolic link to a target in the trial's folder, so that writes through the link stay there."""
        if there(os.fsdecode(self.read(target))):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), source, None, target)
        if self.place(target) is None:
            symlink(source, target)
            return
        origin = os.path.join(os.path.dirname(_real(target)), os.fsdecode(source))
        symlink(self.write(origin, keep=True), self.write(target, keep=False))

    def names(self, path: Any) -> list[str]:
        """Return the names in a folder: existing ones and the trial's, without deleted ones."""
        place, seen = self.place(path), self.read(path)
        if place is None or not _is_folder(seen):
            return _listdir(seen)  # raises the expected error if the folder does not exist
        old = [] if self._hides(place) or not _is_folder(_real(path)) else _listdir(_real(path))
        own = _listdir(place) if _is_folder(place) else []
        if self._is_later is not None:
            old = [name for name in old if not self._is_later(f"{_real(path)}/{name}")]
        return [*dict.fromkeys([*(n for n in old if f"{place}/{n}" not in self._hidden), *own])]

    def entries(self, path: Any) -> list[Any]:
        """Return the entries of a folder as ``os.scandir`` does; for a name in both places, the trial's entry."""
        names, place = set(self.names(path)), self.place(path)
        found: dict[str, Entry] = {}
        for folder in (_real(path), place):
            if folder is None or not _is_folder(folder):
                continue
            with _scandir(folder) as listed:
                found |= {entry.name: Entry(path, entry) for entry in listed if entry.name in names}
        return list(found.values())

    def _hides(self, place: str) -> bool:
        """Return whether the original of a path is hidden: it or a parent was deleted, or it was created later."""
        if self._is_later is not None and self._is_later(place[len(self.folder) :]):
            return True
        while self._hidden and len(place) > len(self.folder):
            if place in self._hidden:
                return True
            place = os.path.dirname(place)
        return False

    def _check_removable(self, path: Any, *, as_folder: bool) -> None:
        """Raise the error of a removal: no such path, a folder instead of a file, or a folder that is not empty."""
        seen = self.read(path)
        is_folder = stat.S_ISDIR(_lstat(seen).st_mode)
        if as_folder and not is_folder:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        if is_folder and not as_folder:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if is_folder and self.names(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)

    def _bring_all(self, real: str, place: str) -> None:
        """Copy existing files that are not in the trial's folder yet, including whole folders."""
        if _is_folder(self.read(real)) and not os.path.islink(real):
            make_folders(place)
            for name in self.names(real):
                self._bring_all(f"{real}/{name}", f"{place}/{name}")
        elif not self._hides(place):
            self.write(real, keep=True)


class Entry:
    """An entry of a folder that has the path used by the program, wherever the file really is."""

    def __init__(self, folder: Any, entry: os.DirEntry[str]) -> None:
        self.name = entry.name
        self.path = os.path.join(os.fsdecode(folder), entry.name)
        self._entry = entry

    def __fspath__(self) -> str:
        return self.path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)


class Entries:
    """An iterator over entries that is also a context manager, like the result of ``os.scandir``."""

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
        """Do nothing: no folder is open."""


def there(path: str) -> bool:
    """Return whether a path exists; a broken link exists too."""
    try:
        _lstat(path)
    except (OSError, ValueError):
        return False
    return True


def make_folders(path: str) -> None:
    """Create a folder and its missing parent folders."""
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
    """Copy a file, or create an empty folder for a folder."""
    if _is_folder(real):
        make_folders(place)
    elif there(real):
        _check_room(real, place)
        with _open(real, "rb") as old, _open(place, "wb") as new:
            shutil.copyfileobj(old, new)


def _check_room(real: str, place: str) -> None:
    """Check that a copy does not fill the disk.

    Raises:
        OSError: The file takes more than half of the free space.
    """
    disk = os.statvfs(os.path.dirname(place))
    if _stat(real).st_size > _ROOM * disk.f_bavail * disk.f_frsize:
        raise OSError(errno.ENOSPC, "a trial changes a copy of this file, and there is no room for one", real)
