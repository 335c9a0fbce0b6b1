"""What to do first, shown at the top of a page, and the next command, shown at its end.

A click selects a whole command. The page's script adds a button that copies it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.report.page.markup import Markup, element, join, section, sentence

SAFETY: Mapping[str, str] = {  # the meaning of each safety class
    "exact": "training computes the same numbers",
    "resampled": "the same samples in the same order, with other random numbers",
    "numeric": "the same algorithm with other rounding",
    "semantic": "another training algorithm",
}
FIRST = "What to do first"


@dataclass(frozen=True, kw_only=True)
class Then:
    """What to do next, in a few words, and the command for it."""

    what: str
    command: str


def first_step(what: str, *, details: list[str | Markup], command: str, title: str = FIRST, before: str = "") -> Markup:
    """Return the box near the top of a page that says what to do first.

    Args:
        what: What to do, in a few words.
        details: Further facts, such as the safety class and the expected gain.
        command: The command to run; empty if there is none.
        title: The heading of the box.
        before: What the command does, in a few words, shown before the command.
    """
    known = element("p", *(element("span", detail) for detail in details), class_="known") if details else None
    return element(
        "div",
        element("h2", title),
        element("p", sentence(what), class_="what"),
        known,
        element("p", before, class_="quiet") if before and command else None,
        command_box(command) if command else None,
        class_="first",
    )


def command_box(command: str) -> Markup:
    """Return a command with a button that copies it; the button is hidden without JavaScript.

    Each word is a separate element, so that lines break between words and not at hyphens.
    """
    words = (join((" " if place else "", element("span", word))) for place, word in enumerate(command.split(" ")))
    text = element("pre", element("code", *words), tabindex="0")
    button = element("button", "Copy", type="button", class_="copy", hidden=True, aria_label="Copy the command")
    return element("div", text, button, class_="typed")


def next_section(command: str, what: str = "", other: str | Markup | None = None) -> Markup | None:
    """Return the last section of a page, which repeats the next command; None without a command."""
    if not command:
        return None
    said = element("p", sentence(what)) if what else None
    return section("next", "Next step", said, command_box(command), other)


def badge(safety: str, meaning: str) -> Markup:
    """Return the name of a safety class with its meaning."""
    return join((element("span", safety, class_=f"badge {safety}"), f" {meaning}"))
