"""Removal of secrets from URLs and messages: passwords, signed queries, and values of settings such as ``key=``."""

from __future__ import annotations

import re

_PASSWORD = re.compile(r"(\w[\w+.-]*://)[^/@\s'\"]+@")
_QUERY = re.compile(r"(\w[\w+.-]*://[^?\s'\"]*)\?[^\s'\",)\]]*")
_SETTING = re.compile(
    r"(?i)\b((?:secret|password|token|signature|sig|key|credential)[\w-]*)(['\"]?\s*[=:]\s*['\"]?)[^\s'\"&,;)}]+"
)


def without_secrets(text: str) -> str:
    """Return a text with ``***`` for the user and the query of URLs, and for values of settings named as secrets."""
    return _SETTING.sub(r"\1\2***", _QUERY.sub(r"\1?***", _PASSWORD.sub(r"\1***@", text)))


def shown_url(url: str) -> str:
    """Return a URL without user and query, for messages."""
    return _PASSWORD.sub(r"\1", url).partition("?")[0].rstrip("/")


def parted(url: str) -> tuple[str, str]:
    """Split an HTTP URL into the URL without query and the query with its ``?``; other URLs get an empty query.

    The query, which can be a signature, is appended to the URL of each object.
    """
    base, mark, query = url.partition("?")
    return (base, mark + query) if mark and url.startswith(("http://", "https://")) else (url, "")
