"""What is there to read about each remedy? The pages of the remedies, and an index.

    python -m paceline.improve.pages docs/remedies      writes one Markdown file for each remedy

A page lives in the file of its remedy and nowhere else.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

from paceline.explain.pages import INDEX, replace_pages
from paceline.improve import remedies
from paceline.improve.remedies import Remedy, all_remedies

_NOTE = "<!-- Made from the remedy by `python -m paceline.improve.pages docs/remedies`; edit the remedy. -->"
_CLASS = re.compile(r"^(Exact|Numeric|Semantic)\b|\. (Exact|Numeric|Semantic)\b", re.MULTILINE)
_HEAD = """# Remedies

What `paceline tune` tries ([how](../how-to/tune.md)), and what a recipe can set. `numeric` needs `--allow numeric`,
`semantic` needs `--allow semantic`.

| remedy | class | what it does |
|---|---|---|
"""


def classes_of(page: str) -> list[str]:
    """Return the safety classes that a page tells of, the usual one first."""
    return list(dict.fromkeys((first or later).lower() for first, later in _CLASS.findall(page)))


def index() -> str:
    """Return the list of all remedies as Markdown."""
    return _HEAD + "".join(f"{_row(remedy)}\n" for remedy in all_remedies())


def _row(remedy: Remedy) -> str:
    classes = ", ".join(f"`{name}`" for name in classes_of(remedy.page))
    return f"| [{remedy.id}]({remedy.id}.md) | {classes} | {_what(remedy)} |"


def _what(remedy: Remedy) -> str:
    """Return what the first line of a remedy's file says of it."""
    file = import_module(f"{remedies.__name__}.{remedy.id.replace('.', '_')}")
    return (file.__doc__ or "").partition(": ")[2].strip().rstrip(".")


def files() -> dict[str, str]:
    """Return the content of every file below ``docs/remedies``, by name."""
    pages = {f"{r.id}.md": f"{_NOTE}\n\n# {r.id}\n\n{r.page.strip()}\n" for r in all_remedies()}
    return {INDEX: f"{_NOTE}\n\n{index()}", **pages}


def write_pages(folder: Path) -> None:
    """Write the pages of all remedies into a folder, and remove pages of remedies that are no more."""
    replace_pages(folder, files())


if __name__ == "__main__":
    write_pages(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/remedies"))
