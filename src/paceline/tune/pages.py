"""The pages of the remedies, and their index.

    python -m paceline.tune.pages docs/remedies      writes one Markdown file for each remedy

The text of a page is in ``tune/remedies`` if ``tune`` can try the remedy, else in ``explain/advice``.
``paceline explain`` prints this text, and the files in ``docs/remedies`` contain it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from paceline.core.remedies import REMEDIES, RemedyInfo
from paceline.explain.advice import advice_pages
from paceline.explain.pages import INDEX, Page, findings_naming, replace_pages, without_links
from paceline.tune.remedies import all_remedies

_NOTE = "<!-- Made from the remedy by `python -m paceline.tune.pages docs/remedies`; edit the remedy. -->"
_HEAD = """# Remedies

A remedy is one change to how training runs. `paceline tune` tries the remedies that are marked *yes*
([how](../how-to/tune.md)). The other remedies are changes to the source or to the machine that you make yourself. By
default, `paceline tune` tries changes of the safety classes `exact` and `resampled`. With `--allow numeric`, it also
tries `numeric` changes, and with `--allow semantic`, it also tries `numeric` and `semantic` changes.
`paceline explain REMEDY` prints the page of a remedy and needs no network connection.

| remedy | what it does | safety class | tune tries it |
|---|---|---|---|
"""


@dataclass(frozen=True, kw_only=True)
class RemedyPage:
    """The page of one remedy."""

    info: RemedyInfo
    body: str  # Markdown sections
    findings: tuple[Page, ...]  # the findings that name the remedy


@cache
def remedy_pages() -> tuple[RemedyPage, ...]:
    """Return the pages of all remedies, in alphabetical order of their ids."""
    bodies = {**advice_pages(), **{remedy.id: remedy.page for remedy in all_remedies()}}
    return tuple(
        RemedyPage(info=info, body=bodies[info.id].strip(), findings=tuple(findings_naming(info.id)))
        for info in REMEDIES.values()
    )


def markdown(page: RemedyPage, *, links: bool = False) -> str:
    """Return the page of a remedy as Markdown.

    Args:
        page: The page.
        links: Whether names of other pages are links to their files, as in ``docs/remedies``, or plain names.
    """
    body = page.body if links else without_links(page.body)
    return f"# {page.info.id}\n\n{page.info.title}.\n\n{_facts(page.info)}\n\n{body}\n{_findings(page, links)}"


def _facts(info: RemedyInfo) -> str:
    *first, last = (f"`{name}`" for name in info.classes)
    classes = f"{', '.join(first)} or {last}" if first else last
    if not info.tunable:
        return f"Safety class: {classes}. `paceline tune` does not try `{info.id}`. Apply the remedy by hand."
    settings = ", ".join(f"`{key}`" for key in info.settings)
    return f"Safety class: {classes}. Recipe settings: {settings}. `paceline tune` can try `{info.id}`."


def _findings(page: RemedyPage, links: bool) -> str:
    if not page.findings:
        return ""
    lines = ["", "## Findings that name this remedy", ""]
    for one in page.findings:
        name = f"{one.code} {one.name}"
        lines.append(f"- [{name}](../findings/{one.file_name})" if links else f"- {name}")
    return "\n".join([*lines, ""])


def index() -> str:
    """Return the index of all remedies as Markdown."""
    return _HEAD + "".join(f"{_row(info)}\n" for info in REMEDIES.values())


def _row(info: RemedyInfo) -> str:
    classes = ", ".join(f"`{name}`" for name in info.classes)
    return f"| [{info.id}]({info.file_name}) | {info.title} | {classes} | {'yes' if info.tunable else 'no'} |"


def files() -> dict[str, str]:
    """Return the content of every file in ``docs/remedies``, by file name."""
    pages = {page.info.file_name: f"{_NOTE}\n\n{markdown(page, links=True)}" for page in remedy_pages()}
    return {INDEX: f"{_NOTE}\n\n{index()}", **pages}


def write_pages(folder: Path) -> None:
    """Write the pages of all remedies into a folder, and remove old pages from the folder."""
    replace_pages(folder, files())


if __name__ == "__main__":
    write_pages(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/remedies"))
