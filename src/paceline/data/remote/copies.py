"""Copies of whole folders from and to an object store, for conversions with a source or a destination in a store."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.data.format.model import CONTENTS_FILE
from paceline.data.remote.secrets import shown_url, without_secrets
from paceline.data.remote.settings import RemoteSettings, cache_folder

Progress = Callable[[int, int], None]
_LAST = (CONTENTS_FILE, "tokens.json")  # the files that make a folder a dataset


@contextmanager
def fetched(url: str, options: Mapping[str, Any], progress: Progress) -> Iterator[Path]:
    """Return a context with a local copy of a file or folder of a store; the copy is deleted at the end.

    Args:
        url: The URL, in fsspec's form.
        options: Options of the file system, such as credentials.
        progress: Is called with the number of copied files and of all files.

    Yields:
        The path of the copy.

    Raises:
        UsageError: There are no files at the URL, or fsspec does not know it.
        EnvironmentFault: The store cannot be read.
    """
    system, root = _system(url, options)
    with TemporaryDirectory(prefix="paceline-source-") as made, _errors(url):
        names = [name for name in system.find(root) if not name.endswith("/")]
        if not names:
            raise UsageError(f"there is nothing at {shown_url(url)}; give the data to convert as SRC")
        whole = Path(made) / Path(root).name
        for number, name in enumerate(names):
            below = os.path.relpath(name, root)
            path = whole if below == "." else whole / below
            if not path.resolve().is_relative_to(Path(made).resolve()):
                raise UsageError(f"{shown_url(url)} has the name {below!r}, which is outside of it")
            path.parent.mkdir(parents=True, exist_ok=True)
            system.get_file(name, str(path))
            if path.stat().st_size != system.size(name):
                raise EnvironmentFault(f"{name} was copied in part; run the command again")
            stamp = _stamp(system.info(name))
            os.utime(path, ns=(stamp, stamp))
            progress(number + 1, len(names))
        yield whole


def _stamp(info: Mapping[str, Any]) -> int:
    """Return a modification time derived from an object's version, so that a resumed conversion notices changes."""
    told = repr([info.get(key) for key in ("ETag", "etag", "LastModified", "mtime", "last_modified")])
    return int.from_bytes(hashlib.sha256(told.encode()).digest()[:7], "little")


def is_complete(folder: Path) -> bool:
    """Return whether the conversion into a folder is complete."""
    return any((folder / name).exists() for name in _LAST)


def staging_folder(url: str, conversion: str) -> Path:
    """Return the local folder for the files of a conversion into a store; a resumed conversion gets the same folder.

    Args:
        url: The destination in the store.
        conversion: The source and the options; another conversion gets another folder.

    Raises:
        UsageError: There is no cache folder.
    """
    cache = cache_folder(RemoteSettings(), os.environ)
    if cache is None:
        raise UsageError("a conversion into a store needs a folder for its files; set PACELINE_CACHE to a folder")
    return (
        cache.parent
        / "conversions"
        / hashlib.sha256(f"{url}\0{conversion}".encode("utf-8", "surrogateescape")).hexdigest()[:20]
    )


def check_empty(url: str, options: Mapping[str, Any], *, partly_sent: bool = False) -> None:
    """Check that a destination in a store has no files.

    Args:
        url: The URL, in fsspec's form.
        options: Options of the file system, such as credentials.
        partly_sent: Whether files of an incomplete dataset are allowed, because they are sent again.

    Raises:
        UsageError: The destination has files.
        EnvironmentFault: The store does not answer.
    """
    system, root = _system(url, options)
    with _errors(url):
        try:
            there = system.find(root, maxdepth=1)
        except FileNotFoundError:
            return
    if any(Path(name).name in _LAST for name in there):
        raise UsageError(f"{shown_url(url)} holds a data set; name another place")
    if there and not partly_sent:
        raise UsageError(f"{shown_url(url)} is not empty: it has {Path(there[0]).name}; name another place")


def send(folder: Path, url: str, options: Mapping[str, Any], progress: Progress) -> None:
    """Copy a converted dataset into a store, and then delete the local folder.

    The file that makes the destination a dataset is sent last.

    Args:
        folder: The local folder of the dataset.
        url: The URL of the destination.
        options: Options of the file system, such as credentials.
        progress: Is called with the number of copied files and of all files.

    Raises:
        EnvironmentFault: A file cannot be copied. The local folder stays, and the next try sends it.
    """
    system, root = _system(url, options)
    names = sorted((path.name for path in folder.iterdir() if not path.name.startswith(".")), key=lambda n: n in _LAST)
    with _errors(url, f"; its files are in {folder}, and are sent when the command is repeated"):
        system.makedirs(root, exist_ok=True)
        for number, name in enumerate(names):
            system.put_file(str(folder / name), f"{root}/{name}")
            system.invalidate_cache()
            if system.size(f"{root}/{name}") != (folder / name).stat().st_size:
                raise OSError(f"{name} was copied in part")
            progress(number + 1, len(names))
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _errors(url: str, more: str = "") -> Iterator[None]:
    """Return a context that turns errors of a store into `UsageError` or `EnvironmentFault`, without secrets."""
    try:
        yield
    except (UsageError, EnvironmentFault):
        raise
    except FileNotFoundError as error:
        raise UsageError(f"there is nothing at {shown_url(url)}{more}") from error
    except Exception as error:
        said = without_secrets(str(error)) or type(error).__name__
        raise EnvironmentFault(f"{shown_url(url)} cannot be used: {said}{more}") from error


def _system(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs

        system, root = url_to_fs(url, **options)
    except ImportError as error:
        raise EnvironmentFault(f"{shown_url(url)} cannot be used: {error}; pip install 'paceline[remote]'") from error
    except (ValueError, TypeError) as error:
        raise UsageError(f"{shown_url(url)} cannot be used: {without_secrets(str(error))}") from error
    return system, str(root).rstrip("/")
