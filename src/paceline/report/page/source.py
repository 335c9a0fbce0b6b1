"""Shows the source lines of functions that a report names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

from paceline.explain.model import Finding, SourceLines
from paceline.report.page.markup import Markup, details, element

MAX_IN_FINDING = 2


def source_of(function: str, found: SourceLines) -> Markup:
    """Return the source lines of a function with their numbers and a marked line, or a note that the file changed."""
    name = PurePath(found.file).name
    if found.changed:
        text = f"{name} was changed after this run started, so line {found.marked} is not shown."
        return element("p", text, class_="quiet", title=found.file)
    lines = (_line(found.first + i, text, found.marked) for i, text in enumerate(found.lines))
    caption = element("figcaption", element("code", f"{name}:{found.marked}"), title=found.file)
    block = element("pre", element("code", *lines), tabindex="0", aria_label=f"Source of {function}")
    return element("figure", caption, block, class_="source")


def _line(number: int, text: str, marked: int) -> Markup:
    shown = element("span", f"{number}", class_="number", aria_hidden="true")
    name = "mark" if number == marked else "span"
    return element(name, shown, element("span", text or " "), class_="line")


def in_finding(finding: Finding, sources: Mapping[str, SourceLines]) -> list[Markup]:
    """Return the source of the functions that a finding names, at most `MAX_IN_FINDING`."""
    texts = [finding.summary, *(one.text for one in finding.evidence), *(one.change for one in finding.remedies)]
    named = [name for name in sources if any(name in text for text in texts)]
    return [source_of(name, sources[name]) for name in named[:MAX_IN_FINDING]]


def in_table(function: str, sources: Mapping[str, SourceLines]) -> Markup:
    """Return the name of a function; if its source is known, a click on the name shows the source."""
    name = element("code", function)
    return details(name, source_of(function, sources[function]), class_="unfold") if function in sources else name
