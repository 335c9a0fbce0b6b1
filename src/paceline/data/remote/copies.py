"""Whole folders copied to and from a store, so that a conversion reads from one or writes to one."""

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
_LAST = (CONTENTS_FILE, "tokens.json")  # what makes a folder a data set


@contextmanager
def fetched(url: str, options: Mapping[str, Any], progress: Progress) -> Iterator[Path]:
    """Copy a file or a folder of a store to this machine, and remove the copy afterwards.

    Args:
        url: As fsspec has it.
        options: For fsspec.
        progress: Called with the files that are copied, and all.

    Raises:
        UsageError: There is nothing, or the store is not known.
        EnvironmentFault: It cannot be copied.
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
    """Return a time that stands for the version of an object, so that a resumed conversion notices another version."""
    told = repr([info.get(key) for key in ("ETag", "etag", "LastModified", "mtime", "last_modified")])
    return int.from_bytes(hashlib.sha256(told.encode()).digest()[:7], "little")


def is_complete(folder: Path) -> bool:
    """Say whether a conversion into a folder is complete."""
    return any((folder / name).exists() for name in _LAST)


def staging_folder(url: str, conversion: str) -> Path:
    """Return the folder of this machine where a conversion into a store is made, the same when it is resumed.

    Args:
        url: Where the data set is sent.
        conversion: The source and the options: another conversion never sends what this one has made.
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
    """Refuse a place in a store that holds something.

    Args:
        url: As fsspec has it.
        options: For fsspec.
        partly_sent: Whether a part of a data set may be there, which is sent again.

    Raises:
        UsageError: There is something.
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
    """Copy a converted data set into a store, what makes it a data set last, and remove it here.

    Raises:
        EnvironmentFault: It cannot be copied; the conversion stays in the folder, and is sent by the next try.
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
    """Turn the errors of a store into ours, without secrets."""
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
