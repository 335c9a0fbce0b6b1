"""What does a person open when the run is over? One file that asks for nothing, with or without JavaScript.

The page is laid out here; `page/` has one file per section. Its policy forbids every request and every
script but the one whose hash it names, so that not even a hole in the escaping could run foreign code.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from paceline.explain.model import Diagnosis
from paceline.report.page.breakdown import breakdown
from paceline.report.page.closing import footer, unavailable
from paceline.report.page.findings import findings
from paceline.report.page.gauges import gauges
from paceline.report.page.loader import loader
from paceline.report.page.loss import loss
from paceline.report.page.markup import Markup, element
from paceline.report.page.ranks import ranks
from paceline.report.page.resources import cost, memory
from paceline.report.page.timeline import timeline
from paceline.report.page.verdict import header, problems
from paceline.report.phases import STYLES, text_on

_SECTIONS = (findings, breakdown, timeline, ranks, loader, loss, gauges, memory, cost, unavailable)
_FORBID = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def to_html(diagnosis: Diagnosis) -> str:
    """Write a diagnosis as one self-contained HTML page."""
    sections = [made for make in _SECTIONS if (made := make(diagnosis)) is not None]
    script = Markup(_asset("report.js"))
    body = element(
        "body",
        header(diagnosis),
        problems(diagnosis),
        element("main", *sections),
        footer(diagnosis),
        element("script", script),
    )
    return "<!doctype html>\n" + element("html", _head(diagnosis, script), body, lang="en") + "\n"


def _head(diagnosis: Diagnosis, script: str) -> Markup:
    style = Markup(_colours() + _asset("report.css"))
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", f"{diagnosis.verdict}: paceline {diagnosis.run_id}"),
        element("style", style),
    )


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"{_FORBID}; script-src 'sha256-{digest}'"


def _asset(name: str) -> str:
    return files("paceline.report").joinpath("assets", name).read_text(encoding="utf-8")


def _colours() -> str:
    """Name the phases' colours for the style sheet, and the colour of text on them."""
    light = "".join(f"--{p.name}:{p.light};--on-{p.name}:{text_on(p.light)};" for p in STYLES.values())
    dark = "".join(f"--{p.name}:{p.dark};--on-{p.name}:{text_on(p.dark)};" for p in STYLES.values())
    use = "".join(f".{name}{{fill:var(--{name});background:var(--{name});color:var(--on-{name})}}" for name in STYLES)
    return f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}{use}"
