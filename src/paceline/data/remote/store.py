"""The connection to a store by fsspec. No other module uses fsspec.

Its file systems are not safe across a fork, and keep connections open: each process opens its own, and lets go of it
when a loader closes.
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
    """Gives the bytes of objects."""

    def ask(self, name: str, begin: int | None, end: int | None) -> Future[bytes]:
        """Begin to fetch an object, or a part of it. A future that is cancelled ends the request."""

    def release(self) -> None:
        """Let go of connections; the next request opens new ones."""


class FsspecStore:
    """A folder of a file system that fsspec knows."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        """Open it; no request is made.

        Raises:
            UsageError: fsspec knows no such store.
            EnvironmentFault: A package that speaks with it is not there.
        """
        self._url, self._query = parted(url)
        self._options = dict(options)
        self._lock = threading.Lock()
        self._opened: tuple[int, Any, str] | None = None  # process, file system, folder in it
        self._open()

    def ask(self, name: str, begin: int | None, end: int | None) -> Future[bytes]:
        """Begin to fetch an object, or a part of it."""
        system, folder = self._open()
        path = f"{folder}/{name}{self._query}"
        span = {} if begin is None else {"start": begin, "end": end}
        if getattr(system, "async_impl", False):
            return asyncio.run_coroutine_threadsafe(system._cat_file(path, **span), system.loop)
        return _in_a_thread(lambda: system.cat_file(path, **span))

    def release(self) -> None:
        """Let go of connections; the file system closes them when nobody has it."""
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
    """Take the blocking forms of its methods away, by which a file system refers to itself.

    They are not used here, and without them its connections close as soon as nobody has it, and not at some collection.
    """
    if getattr(system, "async_impl", False):
        for name in [name for name, value in vars(system).items() if hasattr(value, "__wrapped__")]:
            delattr(system, name)


def _in_a_thread(call: Callable[[], bytes]) -> Future[bytes]:
    """Make a call that cannot be cancelled in a thread. If the caller stops waiting, the thread goes on."""
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
