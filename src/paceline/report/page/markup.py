"""Functions that create HTML. Every string is escaped unless it is already `Markup`."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from paceline.report.words import printable

Attribute = str | int | float | bool | None

MAX_TEXT = 2000
WIDE = 5  # a table with this many columns does not fit a narrow screen
_VOID = frozenset({"br", "hr", "link", "meta", "path"})
_CODE = re.compile(r"`([^`]+)`")
_UNITS = r"h|min|s|ms|µs|ns|B|[KMGTP]iB(?:/s)?|W|°C|MHz|USD|steps?|samples?(?:/s)?"
_MEASURE = re.compile(rf"(?<![\w.])((?:\d[\d,.]* to )?\d[\d,]*(?:\.\d+)?(?:x|\s?%|\s(?:{_UNITS})\b))")


class Markup(str):
    """A string that is already HTML."""

    __slots__ = ()


def escape(text: str) -> Markup:
    """Return text escaped for HTML, also in quoted attributes, and without control characters."""
    return Markup(html.escape(printable(text), quote=True))


def element(name: str, /, *children: str | Markup | None, **attributes: Attribute) -> Markup:
    """Return an HTML element; None children, and None or False attributes, are left out.

    In attribute names a trailing underscore is dropped and others become hyphens: ``class_``, ``aria_label``.
    """
    opening = f"<{name}{_attributes(attributes)}"
    return Markup(f"{opening}/>" if name in _VOID else f"{opening}>{join(children)}</{name}>")


def join(children: Iterable[str | Markup | None]) -> Markup:
    """Return the concatenation of the given strings, each escaped unless it is `Markup`."""
    pieces = (child for child in children if child is not None)
    return Markup("".join(piece if isinstance(piece, Markup) else escape(clipped(piece)) for piece in pieces))


def clipped(text: str) -> str:
    """Return text cut to `MAX_TEXT` characters, to limit the size of the page."""
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} … ({len(text) - MAX_TEXT:,} more characters)"


def sentence(text: str) -> Markup:
    """Return a sentence as HTML, with numbers that have a unit in bold, and text in backticks as code."""
    pieces = _CODE.split(escape(clipped(text)))
    return Markup("".join(_code(piece) if i % 2 else _bold(piece) for i, piece in enumerate(pieces)))


def _bold(text: str) -> str:
    return _MEASURE.sub(r"<b>\1</b>", text)


def _code(text: str) -> str:
    return f"<code>{text}</code>"


def section(anchor: str, title: str, *children: str | Markup | None) -> Markup:
    """Return a section with a heading that labels it."""
    heading = element("h2", title, id=f"{anchor}-title")
    return element("section", heading, *children, id=anchor, aria_labelledby=f"{anchor}-title")


def details(summary: str | Markup, *children: str | Markup | None, open_: bool = False, class_: str = "") -> Markup:
    """Return a part of the page that opens on a click, without JavaScript."""
    return element("details", element("summary", summary), *children, open=open_, class_=class_ or None)


def table(
    heads: Iterable[tuple[str, str]],
    rows: Iterable[Iterable[str | Markup]],
    *,
    class_: str = "",
    stacks: bool | None = None,
) -> Markup:
    """Return a table.

    Args:
        heads: The title and the CSS class of each column: ``num`` for numbers, ``bar`` for drawings.
        rows: The cells.
        class_: The CSS class of the table.
        stacks: Whether a row becomes a separate block on a narrow screen; by default from `WIDE` columns on.
    """
    columns = list(heads)
    stacked = len(columns) >= WIDE if stacks is None else stacks
    head = element("tr", *(element("th", title, scope="col", class_=kind or None) for title, kind in columns))
    body = (_row(row, columns, stacked) for row in rows)
    classes = " ".join(filter(None, (class_, "stack" if stacked else "")))
    made = element("table", element("thead", head), element("tbody", *body), class_=classes or None)
    return element("div", made, class_="scroll")


def _row(cells: Iterable[str | Markup], columns: Sequence[tuple[str, str]], stacked: bool) -> Markup:
    made = (
        element("td", cell, class_=kind or None, data_label=title if stacked and i and title else None)
        for i, (cell, (title, kind)) in enumerate(zip(cells, columns, strict=True))
    )
    return element("tr", *made)


def _attributes(attributes: dict[str, Attribute]) -> str:
    made = []
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        known = name.rstrip("_").replace("_", "-")
        made.append(f" {known}" if value is True else f' {known}="{escape(str(value))}"')
    return "".join(made)
