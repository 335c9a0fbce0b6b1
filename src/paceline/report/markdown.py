"""Parts of Markdown comments on pull requests: escaped text, code, and folded findings."""

from __future__ import annotations

import re

from paceline.explain.model import Evidence, Finding, Remedy
from paceline.report import words

_SPECIAL = re.compile(r"([\\`*_\[\]|~$])")
_BLOCK = re.compile(r"^(\s*)([-+>=]|\d+[.)])(\s|$)")
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_REFERENCE = re.compile(r"(?<!\w)([@#])(?=\w)")


def escape(text: str) -> str:
    """Return text escaped for Markdown: without markup, HTML, mentions of people and references to issues."""
    safe = _SPECIAL.sub(r"\\\1", words.printable(text).translate(_HTML))
    return _REFERENCE.sub("\\1\N{ZERO WIDTH NON-JOINER}", _BLOCK.sub(r"\1\\\2\3", safe))


def code(text: str) -> str:
    """Return text as a code span, with a fence longer than any run of backticks in the text."""
    plain = words.printable(text)
    longest = max((len(run) for run in re.findall("`+", plain)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if longest else ""
    return f"{fence}{pad}{plain}{pad}{fence}"


def finding(one: Finding) -> str:
    """Return a finding as Markdown, folded below its name and its gain."""
    head = f"<code>{_html(one.code)}</code> <b>{_html(one.name)}</b>"
    if one.gain is not None:
        head += f": {words.gain(one.gain)} faster"
    body = [
        escape(words.headline(one.summary)),
        "\n".join(_evidence(each) for each in one.evidence),
        "What to change:" if one.remedies else "",
        "\n".join(_remedy(each) for each in one.remedies),
        f"{one.severity}, {one.confidence} confidence; {code(f'paceline explain {one.code}')}",
    ]
    return _folded(head, "\n\n".join(part for part in body if part))


def folded(title: str, text: str) -> str:
    """Return Markdown text folded below a title; empty if the text is empty."""
    return _folded(_html(title), text) if text else ""


def _folded(head: str, text: str) -> str:
    return f"<details>\n<summary>{head}</summary>\n\n{text}\n\n</details>"


def _html(text: str) -> str:
    return _REFERENCE.sub("\\1\N{ZERO WIDTH NON-JOINER}", words.printable(text).translate(_HTML))


def _evidence(evidence: Evidence) -> str:
    return f"- {escape(evidence.text)}"


def _remedy(remedy: Remedy) -> str:
    gain = f", {words.gain(remedy.gain)}" if remedy.gain is not None else ""
    return f"- **{escape(remedy.change)}** ({remedy.safety}{gain}) {code(remedy.id)}"
