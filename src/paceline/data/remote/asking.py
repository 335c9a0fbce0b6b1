"""Requests to a store. If it is busy, silent or broken, they are repeated, each time later, unless that cannot help.

A request may take so long and no longer, so that a store that stalls cannot hold the training. Between tries the time
doubles, less a random part: who failed together does not come back together.
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

_COMMON_BYTES = 8 << 20  # of a request, for which the limit in time stands
_LONGEST_S = 20.0  # between two tries
_FIRST_S = 30.0  # for which requests are repeated if the store has given nothing yet: its address may be wrong
_log = logging.getLogger("paceline.data")
_FINAL = {*range(400, 500), 501, 505} - {408, 425, 429}  # that do not pass
_ADVICE = {
    "missing": "was it moved, or copied only in part?",
    "refused": "give credentials in storage_options=, or where the store's own tools find them (AWS_PROFILE, ~/.aws)",
    "wrong": "check the URL and storage_options=",
    "busy": "check the store and the network, or raise outage_s= and request_s=",
}
_NO_USE = (ImportError, TypeError, ValueError, AttributeError, IsADirectoryError)


class Unfetched(EnvironmentFault):
    """A store did not give what was asked for; the message says what, why, how often it was tried, and what to do."""


class Missing(Unfetched, UsageError):
    """There is no such object."""


@dataclass(kw_only=True)
class Counts:
    """What was asked of a store, and what of its cache."""

    requests: int = 0
    repeated: int = 0  # of them, because one failed
    bytes: int = 0  # that came
    from_cache: int = 0  # pieces that the disk had
    not_kept: int = 0  # pieces for which the disk had no room


class Asker:
    """Fetches from a store, in spite of it."""

    def __init__(self, store: Store, url: str, settings: RemoteSettings, counts: Counts) -> None:
        self._store = store
        self._url = shown_url(url)
        self._settings = settings
        self._counts = counts
        self._lock = Lock()
        self._told_at: float | None = None  # when it was told that the store does not answer
        self._chance = random.SystemRandom()  # the training's is left alone, and forked processes do not draw alike

    def fetched(self, name: str, begin: int | None, end: int | None, stop: Stop) -> bytes:
        """Fetch an object, or a part of it; less where it ends before.

        Raises:
            Missing: There is no such object.
            Unfetched: It cannot be fetched for another reason.
            Stopped: Nobody wants it any more.
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
        """Say whether a request is repeated after so many tries."""
        if self._settings.tries is not None:
            return number < self._settings.tries
        with self._lock:
            outage_s = self._settings.outage_s if self._counts.bytes else min(_FIRST_S, self._settings.outage_s)
        return time.monotonic() - begun < outage_s

    def _tell(self, asked: str, said: str) -> None:
        """Warn that the store does not answer, once for all requests of an outage."""
        with self._lock:
            told = self._told_at
            self._told_at = time.monotonic() if told is None else told
        if told is None:  # of a store that fails now and then, once is enough
            _log.warning("%s: %s; the request is repeated for up to %s", asked, said, self._for())

    def _for(self) -> str:
        tries = self._settings.tries
        return units.seconds(self._settings.outage_s) if tries is None else f"{tries} tries"

    def _tell_end(self) -> None:
        """Log that the store answers again, if an outage was told."""
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
        """Return how long to wait after so many tries."""
        with self._lock:
            self._counts.repeated += 1
        return min(_LONGEST_S, self._settings.wait_s * 2 ** (number - 1)) * self._chance.uniform(0.5, 1)

    def _said(self, error: Exception, begin: int | None, end: int | None) -> str:
        """Return what happened, in a few words."""
        if isinstance(error, TimeoutError):
            return f"no answer within {units.seconds(self._limit_s(begin, end))}"
        if isinstance(error, FileNotFoundError):
            return "there is no such object"
        status, message = status_of(error), getattr(error, "message", "") or str(error)
        if status is not None and str(status) not in message:
            message = f"{status} {message}"
        return without_secrets(message) or type(error).__name__


def kind_of(error: Exception) -> str:
    """Return what an error is: "busy" may pass; "missing", "refused", "wrong", "beyond" and "stopped" do not."""
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
    """Forget where an error came about: the frames of a library hold its connections for as long as they are known."""
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
    while cause is not None:  # s3fs raises errors of the system in place of botocore's
        response = getattr(cause, "response", None)
        if isinstance(response, dict):
            told = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return told if isinstance(told, int) else None
        cause = cause.__cause__
    return None
