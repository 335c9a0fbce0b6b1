"""The frame of every page: a head whose content security policy forbids requests and foreign scripts.

The policy names the hash of the page's one script, so a fault in the escaping could not run foreign code.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from paceline.report.page.markup import Markup, element
from paceline.report.phases import STYLES, text_on

_FORBID = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def document(title: str, *content: Markup | None, style: str = "", script: str = "") -> str:
    """Write a page, with the style that all of ours share.

    Args:
        title: What the tab is called.
        content: What is on it.
        style: Rules of this page alone.
        script: Its script, after the one that copies commands.
    """
    whole = asset("copy.js") + script
    body = element("body", *content, element("script", Markup(whole)))
    return "<!doctype html>\n" + element("html", _head(title, style, whole), body, lang="en") + "\n"


def asset(name: str) -> str:
    """Return a style sheet or script that comes with the package."""
    return files("paceline.report").joinpath("assets", name).read_text(encoding="utf-8")


def _head(title: str, style: str, script: str) -> Markup:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", title),
        element("style", Markup(_colours() + asset("report.css") + style)),
    )


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"{_FORBID}; script-src 'sha256-{digest}'"


def _colours() -> str:
    """Name the phases' colours for the style sheet, and the colour of text on them."""
    light = "".join(f"--{p.name}:{p.light};--on-{p.name}:{text_on(p.light)};" for p in STYLES.values())
    dark = "".join(f"--{p.name}:{p.dark};--on-{p.name}:{text_on(p.dark)};" for p in STYLES.values())
    use = "".join(f".{name}{{fill:var(--{name});background:var(--{name});color:var(--on-{name})}}" for name in STYLES)
    return f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}{use}"
