"""Settings of a dataset in an object store: the cache on the local disk, time limits and retries."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from paceline.core.errors import UsageError
from paceline.core.files import user_folder

VARIABLE = "PACELINE_CACHE"
OFF = "off"


@dataclass(frozen=True, kw_only=True)
class RemoteSettings:
    """How a dataset in a store is read. No setting changes the samples or their order."""

    cache: str | os.PathLike[str] | Literal[False] | None = None  # a folder on the local disk; False: no cache;
    # None: $PACELINE_CACHE, else $XDG_CACHE_HOME/paceline/shards
    cache_bytes: int | None = None  # the limit of the cache; None: half of the free bytes
    outage_s: float = 300.0  # how long requests are retried if the store is busy, broken or silent
    tries: int | None = None  # the most tries of a request; replaces `outage_s`
    request_s: float = 30.0  # time limit of a request of up to 8 MiB; proportionally longer for larger ones
    wait_s: float = 0.5  # pause before the second try; doubles up to 20 s, less a random part of up to a half
    requests: int = 16  # requests at the same time
    storage_options: Mapping[str, Any] = field(default_factory=dict)  # for fsspec: key, secret, endpoint_url, anon ...


def chosen(settings: Mapping[str, Any]) -> RemoteSettings:
    """Return the settings with the given values, and the defaults for the rest.

    Raises:
        UsageError: A name or a value is not allowed.
    """
    known = [one.name for one in fields(RemoteSettings)]
    wrong = [name for name in settings if name not in known]
    if wrong:
        raise UsageError(f"a data set in a store has no setting {', '.join(wrong)}; settings: {', '.join(known)}")
    found = RemoteSettings(**settings)
    if (
        (found.tries is not None and found.tries < 1)
        or found.outage_s < 0
        or found.requests < 1
        or found.request_s <= 0
        or found.wait_s < 0
    ):
        raise UsageError(
            f"tries={found.tries}, outage_s={found.outage_s}, requests={found.requests}, "
            f"request_s={found.request_s}, wait_s={found.wait_s}: "
            "tries and requests must be 1 or more, and times above 0 s"
        )
    if found.cache_bytes is not None and found.cache_bytes < 1:
        raise UsageError(
            f"cache_bytes is {found.cache_bytes}; it must be above 0. Use cache=False to keep nothing on disk"
        )
    return found


def cache_folder(settings: RemoteSettings, environment: Mapping[str, str]) -> Path | None:
    """Return the folder of the cache, from the settings or the environment; None if nothing is cached."""
    if settings.cache is False:
        return None
    if settings.cache is not None:
        return Path(settings.cache)
    named = environment.get(VARIABLE, "")
    if named:
        return None if named.lower() == OFF else Path(named)
    cache = user_folder("cache", environment)
    return None if cache is None else cache / "shards"
