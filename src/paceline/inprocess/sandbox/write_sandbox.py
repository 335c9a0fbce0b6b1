"""The write sandbox of a trial: files that the program writes go to the trial's folder.

It covers Python's file functions and some libraries that write from C (`inprocess.sandbox.native_writers`), in the
program and in every Python process that it starts, from the first line on. Other writes from C are not covered. Caches
and downloads, which persist between runs, are written directly.
"""

from __future__ import annotations

import builtins
import ctypes
import functools
import io
import os
import shutil
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any

from paceline.inprocess.sandbox import native_writers
from paceline.inprocess.sandbox.path_mapping import Entries, Overlay, there

_AT_FDCWD, _NOFOLLOW, _BTIME = -100, 0x100, 0x800
_SIZE, _MASK, _BORN = 256, "I", "qI"
_BORN_AT = 80  # offset in bytes in struct statx (man 2 statx)
_statx = getattr(ctypes.CDLL(None), "statx", None)

_FREE = ("/dev", "/proc", "/sys")
_CACHES = ("~/.cache", "~/.triton", "~/.nv")
_OF_CACHES = (  # variables that contain the path of a cache
    *("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE", "TORCH_HOME"),
    *("TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_HOME", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH"),
    *("NUMBA_CACHE_DIR", "MPLCONFIGDIR"),
)
_WRITE_NOTHING = ("python", "ldconfig", "gcc", "cc", "ld", "objdump", "lscpu", "uname", "file", "nvidia-smi")
_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_opened = builtins.open
_overlay: Overlay | None = None
_others_wrote: list[bool] = []  # a program other than Python has started, and may have written anywhere


def begin(folder: str, since_s: float | None = None) -> None:
    """Redirect all writes of this process to the trial's folder from now on.

    Args:
        folder: The trial's folder.
        since_s: Hide files that another rank of the program created after this time, because this rank creates them
            itself; in seconds since 1970. Once this process has started a program other than Python, all files are
            visible, because that program may write anywhere.
    """
    global _overlay  # noqa: PLW0603 one process has one overlay; torch is patched later
    is_later = None if since_s is None else _later_than(since_s)
    _overlay = overlay = Overlay(folder, free_places(os.environ, os.getcwd()), is_later)
    shutil._use_fd_functions = False  # type: ignore[attr-defined]  # rmtree with paths, which the patches see
    if hasattr(shutil, "_rmtree_impl"):  # Python 3.14 reads this variable instead
        shutil._rmtree_impl = shutil._rmtree_unsafe  # type: ignore[attr-defined]
    _patch_open(overlay)
    _patch_reading(overlay)
    _patch_folders(overlay)
    _patch_deleting(overlay)
    _patch_moving(overlay)
    native_writers.begin(overlay)


def _later_than(since_s: float) -> Callable[[str], bool]:
    import subprocess

    original, system = subprocess.Popen.__init__, os.system

    @functools.wraps(original)
    def __init__(self: Any, args: Any, *others: Any, **named: Any) -> None:
        line = args if isinstance(args, str | bytes | os.PathLike) else next(iter(args), "")
        name = os.path.basename(os.fsdecode(line).split(" ")[0])
        if not name.startswith(_WRITE_NOTHING):
            show_all()
        original(self, args, *others, **named)

    @functools.wraps(system)
    def run(command: Any) -> int:
        show_all()
        return system(command)

    subprocess.Popen.__init__, os.system = __init__, run  # type: ignore[method-assign]
    return lambda path: not _others_wrote and _is_new(path, born_s, since_s)


def show_all() -> None:
    """Make files visible that another rank has created since the start of the program."""
    _others_wrote.append(True)


def _is_new(path: str, born_s: Callable[[str], float | None], since_s: float) -> bool:
    """Return whether a path was created after this time. A path that does not exist counts as new.

    Existence is checked first, because another rank may create the path between the two checks.
    """
    if not there(path):
        return True
    born = born_s(path)
    return born is not None and born >= since_s


def patch(torch: Any) -> None:
    """Redirect the files that torch writes from C to the trial's folder too."""
    if _overlay is not None:
        native_writers.patch_torch(torch, _overlay)


def free_places(environment: Mapping[str, str], cwd: str) -> tuple[str, ...]:
    """Return folders that are written directly: devices, the trial's own and caches. Parents of `cwd` are left out."""
    ours = [environment[name] for name in ("PACELINE_WATCH_DIR", "TMPDIR") if environment.get(name)]
    named = [environment[name] for name in _OF_CACHES if environment.get(name)]
    caches = [os.path.join(cwd, os.path.expanduser(place)) for place in (*_CACHES, *named)]
    return (*_FREE, *ours, *(place for place in caches if not f"{cwd}/".startswith(f"{place.rstrip('/')}/")))


def _at(path: Any, dir_fd: int | None) -> Any:
    """Return the absolute form of a path that is relative to an open folder."""
    return path if dir_fd is None else os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), os.fsdecode(path))


class _named:  # noqa: N801 a context manager in each stat call
    """Replaces the mapped path in an error by the path that the program used."""

    __slots__ = ("_path", "_place")

    def __init__(self, path: Any, place: Any) -> None:
        self._path, self._place = path, place

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, OSError) and error.filename == self._place:
            error.filename = self._path


def _patch_open(overlay: Overlay) -> None:
    os_opened = os.open

    @functools.wraps(_opened)
    def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, int) or kwargs.get("opener") is not None:
            return _opened(file, mode, *args, **kwargs)
        writes = any(letter in mode for letter in "wax+")
        if "x" in mode and there(os.fsdecode(overlay.read(file))):
            raise FileExistsError(17, "File exists", file)
        place = overlay.write(file, keep="w" not in mode and "x" not in mode) if writes else overlay.read(file)
        with _named(file, place):
            return _opened(place, mode, *args, **kwargs)

    @functools.wraps(os_opened)
    def os_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        path = _at(path, dir_fd)
        if flags & os.O_EXCL and there(os.fsdecode(overlay.read(path))):
            raise FileExistsError(17, "File exists", path)
        place = overlay.write(path, keep=not flags & os.O_TRUNC) if flags & _CHANGES else overlay.read(path)
        with _named(path, place):
            return os_opened(place, flags, mode)

    builtins.open = io.open = open_
    os.open = os_open
    for name, attribute in (("bz2", "_builtin_open"), ("tarfile", "bltn_open")):
        _replace_taken(name, attribute, open_)


def _replace(name: str, make: Callable[[Any], Any]) -> None:
    """Replace a function of `os`, also in the sets by which `shutil` asks what it supports."""
    original = getattr(os, name)
    replacement = make(original)
    setattr(os, name, replacement)
    for supported in (os.supports_follow_symlinks, os.supports_dir_fd, os.supports_fd, os.supports_effective_ids):
        if original in supported:
            supported.add(replacement)


def _replace_taken(module: str, attribute: str, open_: Any) -> None:
    """Replace the reference to the original `open` in a module that was imported before the patch."""
    taken = sys.modules.get(module)
    if taken is not None and getattr(taken, attribute, None) is _opened:
        setattr(taken, attribute, open_)


def _patch_reading(overlay: Overlay) -> None:
    def reading(original: Any) -> Any:
        @functools.wraps(original)
        def read(path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> Any:
            path = _at(path, dir_fd)
            place = overlay.read(path)
            with _named(path, place):
                return original(place, *args, **kwargs)

        return read

    for name in ("stat", "lstat", "access", "readlink", "listxattr", "getxattr", "statvfs"):
        _replace(name, reading)


def _patch_folders(overlay: Overlay) -> None:
    listdir, scandir, mkdir, chdir, getcwd = os.listdir, os.scandir, os.mkdir, os.chdir, os.getcwd

    @functools.wraps(listdir)
    def list_(path: Any = None) -> Any:
        if isinstance(path, int):
            return listdir(path)
        asked = "." if path is None else path
        with _named(asked, overlay.read(asked)):
            names = overlay.names(asked)
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

    @functools.wraps(scandir)
    def scan(path: Any = None) -> Any:
        path = "." if path is None else path
        return scandir(path) if overlay.place(path) is None else Entries(overlay.entries(path))

    @functools.wraps(mkdir)
    def make(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        path = _at(path, dir_fd)
        if there(os.fsdecode(overlay.read(path))):
            raise FileExistsError(17, "File exists", path)
        mkdir(overlay.write(path, keep=False), mode)

    @functools.wraps(chdir)
    def change(path: Any) -> None:
        chdir(overlay.enter(path))

    @functools.wraps(getcwd)
    def current() -> str:
        return getcwd().removeprefix(overlay.folder) or "/"

    os.listdir, os.scandir, os.mkdir, os.chdir, os.getcwd = list_, scan, make, change, current


def _patch_deleting(overlay: Overlay) -> None:
    def deleting(original: Any) -> Any:
        @functools.wraps(original)
        def delete(path: Any, *, dir_fd: int | None = None) -> None:
            overlay.delete(_at(path, dir_fd), original)

        return delete

    os.remove, os.unlink, os.rmdir = deleting(os.remove), deleting(os.unlink), deleting(os.rmdir)


def _patch_moving(overlay: Overlay) -> None:
    symlink, link = os.symlink, os.link

    def moving(original: Any) -> Any:
        @functools.wraps(original)
        def move(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
            overlay.move(_at(src, src_dir_fd), _at(dst, dst_dir_fd), original)

        return move

    def touching(original: Any) -> Any:
        @functools.wraps(original)
        def touch(path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> Any:
            return original(overlay.write(_at(path, dir_fd), keep=True), *args, **kwargs)

        return touch

    @functools.wraps(symlink)
    def make_symlink(src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None) -> None:
        overlay.link(src, _at(dst, dir_fd), symlink)

    @functools.wraps(link)
    def make_link(
        src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None, **kwargs: Any
    ) -> None:
        source, target = _at(src, src_dir_fd), _at(dst, dst_dir_fd)
        link(overlay.write(source, keep=True), overlay.write(target, keep=False), **kwargs)

    os.rename, os.replace = moving(os.rename), moving(os.replace)
    os.symlink, os.link = make_symlink, make_link
    for name in ("utime", "chmod", "chown", "truncate", "mkfifo", "setxattr", "removexattr"):
        _replace(name, touching)


def born_s(path: str) -> float | None:
    """Return the creation time of a file in seconds since 1970, without following symbolic links."""
    if _statx is None:
        return None
    found = ctypes.create_string_buffer(_SIZE)
    if _statx(_AT_FDCWD, os.fsencode(path), _NOFOLLOW, _BTIME, found):
        return None
    if not struct.unpack_from(_MASK, found)[0] & _BTIME:
        return None
    seconds, nanoseconds = struct.unpack_from(_BORN, found, _BORN_AT)
    return float(seconds) + float(nanoseconds) * 1e-9
