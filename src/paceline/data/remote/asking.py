"""Requests to an object store, with a time limit and retries with exponential backoff.

A request is retried if the store is busy, silent or broken, but not after errors that a retry cannot help. The time
limit keeps a stalled store from blocking the training. The pause between tries doubles, less a random part, so that
ranks that failed together do not retry together.
"""

from __future__ import annotations

import logging
import random
import time
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from itertools import count
from threading import Lock

from paceline.core import units
from paceline.core.errors import EnvironmentFault, UsageError
from paceline.data.format.folders import Stop, Stopped
from paceline.data.remote.secrets import shown_url, without_secrets
from paceline.data.remote.settings import RemoteSettings
from paceline.data.remote.store import Store

_COMMON_BYTES = 8 << 20  # the size of a request up to which the time limit is `request_s`
_LONGEST_S = 20.0  # the longest pause between two tries
_FIRST_S = 30.0  # of retries if no request has succeeded yet, as the address may be wrong
_log = logging.getLogger("paceline.data")
_FINAL = {*range(400, 500), 501, 505} - {408, 425, 429}  # HTTP statuses that are not retried
_ADVICE = {
    "missing": "was it moved, or copied only in part?",
    "refused": "give credentials in storage_options=, or where the store's own tools find them (AWS_PROFILE, ~/.aws)",
    "wrong": "check the URL and storage_options=",
    "busy": "check the store and the network, or raise outage_s= and request_s=",
}
_NO_USE = (ImportError, TypeError, ValueError, AttributeError, IsADirectoryError)


class Unfetched(EnvironmentFault):
    """An object could not be fetched; the message names the object, the cause, the number of tries, and what to do."""


class Missing(Unfetched, UsageError):
    """The store has no object of this name."""


@dataclass(kw_only=True)
class Counts:
    """Counts of the requests to a store, and of the reads from its cache."""

    requests: int = 0
    repeated: int = 0  # requests that were retries
    bytes: int = 0  # received
    from_cache: int = 0  # pieces that were read from the disk
    not_kept: int = 0  # pieces that the disk had no room for


class Asker:
    """Fetches objects from a store, with retries."""

    def __init__(self, store: Store, url: str, settings: RemoteSettings, counts: Counts) -> None:
        self._store = store
        self._url = shown_url(url)
        self._settings = settings
        self._counts = counts
        self._lock = Lock()
        self._told_at: float | None = None  # when the warning of an outage was logged; None: never, 0: it has ended
        self._chance = random.SystemRandom()  # leaves the training's generator alone; differs in forked processes

    def fetched(self, name: str, begin: int | None, end: int | None, stop: Stop) -> bytes:
        """Fetch an object or a range of its bytes.

        Args:
            name: The name of the object below the URL.
            begin: The first byte; None for the whole object.
            end: The end of the range, exclusive. If the object ends before, fewer bytes are returned.
            stop: Ends the request and the retries.

        Raises:
            Missing: There is no such object.
            Unfetched: The object cannot be fetched for another reason.
            Stopped: `stop` was set.
        """
        begun = time.monotonic()
        asked = f"{self._url}/{name}" + ("" if begin is None else f", bytes {begin:,} to {end:,}")
        for number in count(1):
            try:
                found = self._once(name, begin, end, stop)
                self._tell_end()
                return found
            except Exception as error:
                kind, said = kind_of(error), self._said(error, begin, end)
                _let_go(error)
            if kind == "beyond":
                return b""
            if kind == "stopped":
                raise Stopped
            if kind != "busy" or not self._goes_on(number, begun):
                break
            self._tell(asked, said)
            stop.wait(self._pause(number))
        often = f"tried {number} times in {units.seconds(time.monotonic() - begun)}; " if number > 1 else ""
        raise (Missing if kind == "missing" else Unfetched)(f"{asked}: {said}; {often}{_ADVICE[kind]}")

    def _goes_on(self, number: int, begun: float) -> bool:
        """Return whether to retry a request.

        Args:
            number: The number of tries so far.
            begun: The time of the first try, from `time.monotonic`.
        """
        if self._settings.tries is not None:
            return number < self._settings.tries
        with self._lock:
            outage_s = self._settings.outage_s if self._counts.bytes else min(_FIRST_S, self._settings.outage_s)
        return time.monotonic() - begun < outage_s

    def _tell(self, asked: str, said: str) -> None:
        """Log a warning that the store does not answer; only the first outage of a dataset is logged."""
        with self._lock:
            told = self._told_at
            self._told_at = time.monotonic() if told is None else told
        if told is None:  # once is enough for a store that often fails
            _log.warning("%s: %s; the request is repeated for up to %s", asked, said, self._for())

    def _for(self) -> str:
        tries = self._settings.tries
        return units.seconds(self._settings.outage_s) if tries is None else f"{tries} tries"

    def _tell_end(self) -> None:
        """Log that the store answers again, if its outage was logged."""
        if not self._told_at:
            return
        with self._lock:
            told, self._told_at = self._told_at, 0.0
        if told:
            _log.info("%s answers again after %s", self._url, units.seconds(time.monotonic() - told))

    def _once(self, name: str, begin: int | None, end: int | None, stop: Stop) -> bytes:
        with self._lock:
            self._counts.requests += 1
        future: Future[bytes] = self._store.ask(name, begin, end)
        with stop.ending(future):
            try:
                found = future.result(self._limit_s(begin, end))
            except CancelledError as error:
                raise Stopped from error
        if begin is not None and end is not None and len(found) > end - begin:
            raise ValueError(f"the server sent {len(found):,} bytes; it does not support range requests")
        with self._lock:
            self._counts.bytes += len(found)
        return found

    def _limit_s(self, begin: int | None, end: int | None) -> float:
        asked = 0 if begin is None or end is None else end - begin
        return self._settings.request_s * max(1.0, asked / _COMMON_BYTES)

    def _pause(self, number: int) -> float:
        """Count a retry, and return the pause before it in seconds.

        Args:
            number: The number of tries so far.
        """
        with self._lock:
            self._counts.repeated += 1
        return min(_LONGEST_S, self._settings.wait_s * 2 ** (number - 1)) * self._chance.uniform(0.5, 1)

    def _said(self, error: Exception, begin: int | None, end: int | None) -> str:
        """Return a short description of an error, without secrets."""
        if isinstance(error, TimeoutError):
            return f"no answer within {units.seconds(self._limit_s(begin, end))}"
        if isinstance(error, FileNotFoundError):
            return "there is no such object"
        status, message = status_of(error), getattr(error, "message", "") or str(error)
        if status is not None and str(status) not in message:
            message = f"{status} {message}"
        return without_secrets(message) or type(error).__name__


def kind_of(error: Exception) -> str:
    """Return the kind of an error: "busy" is retried; "missing", "refused", "wrong", "beyond", "stopped" are not."""
    if isinstance(error, Stopped):
        return "stopped"
    status = status_of(error)
    if status == 416:
        return "beyond"
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        return "missing"
    if isinstance(error, PermissionError) or status in (401, 403) or "Credential" in type(error).__name__:
        return "refused"
    if isinstance(error, _NO_USE) or status in _FINAL:
        return "wrong"
    return "busy"


def _let_go(error: BaseException | None) -> None:
    """Delete the tracebacks of an error, because their frames keep the connections of a library open."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an error. Libraries store it in different attributes."""
    for name in ("status", "status_code", "code"):
        value = getattr(error, name, None)
        if isinstance(value, int) and 100 <= value < 600:
            return value
    cause: BaseException | None = error
    while cause is not None:  # s3fs replaces botocore's errors by OSErrors
        response = getattr(cause, "response", None)
        if isinstance(response, dict):
            told = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return told if isinstance(told, int) else None
        cause = cause.__cause__
    return None
