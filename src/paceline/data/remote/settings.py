"""Settings of a data set in a store: what is kept on the local disk, and how long a store may take."""

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
    """How a data set in a store is read; none of it changes which samples come."""

    cache: str | os.PathLike[str] | Literal[False] | None = None  # a folder of this machine's disk; False: none;
    # None: $PACELINE_CACHE, else $XDG_CACHE_HOME/paceline/shards
    cache_bytes: int | None = None  # that it may have; None: half of what is free there
    outage_s: float = 300.0  # for which requests are repeated, where the store is busy, broken or silent
    tries: int | None = None  # of a request, in place of that time
    request_s: float = 30.0  # that a request of up to 8 MB may take; a larger one longer, in proportion
    wait_s: float = 0.5  # before the second try; twice as long before each further one, up to 20 s, less up to a half
    requests: int = 16  # in flight at a time
    storage_options: Mapping[str, Any] = field(default_factory=dict)  # for fsspec: key, secret, endpoint_url, anon ...


def chosen(settings: Mapping[str, Any]) -> RemoteSettings:
    """Return settings by their names.

    Raises:
        UsageError: There is no such setting, or it cannot have such a value.
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
    """Return where what was fetched is kept; None: nowhere."""
    if settings.cache is False:
        return None
    if settings.cache is not None:
        return Path(settings.cache)
    named = environment.get(VARIABLE, "")
    if named:
        return None if named.lower() == OFF else Path(named)
    cache = user_folder("cache", environment)
    return None if cache is None else cache / "shards"
