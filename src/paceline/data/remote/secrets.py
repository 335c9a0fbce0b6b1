"""Addresses and messages without the secrets in them: passwords, and queries that are signed."""

from __future__ import annotations

import re

_PASSWORD = re.compile(r"(\w[\w+.-]*://)[^/@\s'\"]+@")
_QUERY = re.compile(r"(\w[\w+.-]*://[^?\s'\"]*)\?[^\s'\",)\]]*")
_SETTING = re.compile(
    r"(?i)\b((?:secret|password|token|signature|sig|key|credential)[\w-]*)(['\"]?\s*[=:]\s*['\"]?)[^\s'\"&,;)}]+"
)


def without_secrets(text: str) -> str:
    """Return a text whose URLs have neither a user nor a query, and whose settings named as secrets have no value."""
    return _SETTING.sub(r"\1\2***", _QUERY.sub(r"\1?***", _PASSWORD.sub(r"\1***@", text)))


def shown_url(url: str) -> str:
    """Return a URL as it can be shown, without user and query."""
    return _PASSWORD.sub(r"\1", url).partition("?")[0].rstrip("/")


def parted(url: str) -> tuple[str, str]:
    """Return a URL of HTTP without its query, and the query with its mark, which signs each object; else the URL."""
    base, mark, query = url.partition("?")
    return (base, mark + query) if mark and url.startswith(("http://", "https://")) else (url, "")
