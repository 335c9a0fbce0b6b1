"""The frame of every page: an HTML head whose content security policy forbids requests and foreign scripts.

The policy contains the hash of the page's only script, so an error in escaping could not run foreign code.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from paceline.report.page.markup import Markup, element
from paceline.report.phases import STYLES, text_on

_FORBID = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def document(title: str, *content: Markup | None, style: str = "", script: str = "") -> str:
    """Return a complete HTML page with the common style sheet.

    Args:
        title: The title of the page.
        content: The content of the body.
        style: CSS rules of this page only.
        script: Script of this page, added after the one that copies commands.
    """
    whole = asset("copy.js") + script
    body = element("body", *content, element("script", Markup(whole)))
    return "<!doctype html>\n" + element("html", _head(title, style, whole), body, lang="en") + "\n"


def asset(name: str) -> str:
    """Return the text of a style sheet or script that is a file of this package."""
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
    """Return the CSS with the colours of the phases, and of text on these colours."""
    light = "".join(f"--{p.name}:{p.light};--on-{p.name}:{text_on(p.light)};" for p in STYLES.values())
    dark = "".join(f"--{p.name}:{p.dark};--on-{p.name}:{text_on(p.dark)};" for p in STYLES.values())
    use = "".join(f".{name}{{fill:var(--{name});background:var(--{name});color:var(--on-{name})}}" for name in STYLES)
    return f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}{use}"
