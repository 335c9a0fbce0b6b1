"""The connection of a loader to a store, through fsspec.

The file systems of fsspec do not survive a fork and keep connections open. So each process opens its own file system,
and releases it when the loader closes.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.data.remote.secrets import parted, shown_url, without_secrets


class Store(Protocol):
    """Fetches the bytes of objects."""

    def ask(self, name: str, begin: int | None, end: int | None) -> Future[bytes]:
        """Start to fetch an object or a range of its bytes; cancelling the future ends the request.

        Args:
            name: The name of the object.
            begin: The first byte; None for the whole object.
            end: The end of the range, exclusive.
        """

    def release(self) -> None:
        """Release the connections; the next request opens new ones."""


class FsspecStore:
    """A folder in a file system of fsspec."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        """Open the file system; no request is made.

        Args:
            url: The URL of the folder.
            options: Options of the file system, such as credentials.

        Raises:
            UsageError: fsspec does not know the URL or the options.
            EnvironmentFault: The package for this kind of store is not installed.
        """
        self._url, self._query = parted(url)
        self._options = dict(options)
        self._lock = threading.Lock()
        self._opened: tuple[int, Any, str] | None = None  # process, file system, folder in it
        self._open()

    def ask(self, name: str, begin: int | None, end: int | None) -> Future[bytes]:
        """Start to fetch an object or a range of its bytes, and return the future of the bytes."""
        system, folder = self._open()
        path = f"{folder}/{name}{self._query}"
        span = {} if begin is None else {"start": begin, "end": end}
        if getattr(system, "async_impl", False):
            return asyncio.run_coroutine_threadsafe(system._cat_file(path, **span), system.loop)
        return _in_a_thread(lambda: system.cat_file(path, **span))

    def release(self) -> None:
        """Drop the file system, which then closes its connections; the next request opens a new one."""
        with self._lock:
            self._opened = None

    def _open(self) -> tuple[Any, str]:
        with self._lock:
            if self._opened is None or self._opened[0] != os.getpid():
                self._opened = (os.getpid(), *_file_system(self._url, self._options))
            return self._opened[1], self._opened[2]


def _file_system(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs

        system, folder = url_to_fs(url, skip_instance_cache=True, **options)
    except ImportError as error:
        raise EnvironmentFault(f"{shown_url(url)} cannot be read: {error}; pip install 'paceline[remote]'") from error
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"{shown_url(url)} cannot be read: {without_secrets(str(error))}; "
            "give a URL and storage_options= that fsspec knows"
        ) from error
    _untie(system)
    return system, str(folder).rstrip("/")


def _untie(system: Any) -> None:
    """Delete the blocking methods of an asynchronous file system, through which it references itself.

    Paceline does not use them. Without the reference cycle, connections close as soon as the file system is dropped.
    """
    if getattr(system, "async_impl", False):
        for name in [name for name, value in vars(system).items() if hasattr(value, "__wrapped__")]:
            delattr(system, name)


def _in_a_thread(call: Callable[[], bytes]) -> Future[bytes]:
    """Run a call in a thread and return its future. Cancelling the future does not end the thread."""
    future: Future[bytes] = Future()

    def made() -> None:
        try:
            found = call()
        except BaseException as error:
            with suppress(Exception):  # cancelled in the meantime
                future.set_exception(error)
        else:
            with suppress(Exception):
                future.set_result(found)

    threading.Thread(target=made, name="paceline-fetch", daemon=True).start()
    return future
