"""Does every relative link of the documentation lead to a file, and every anchor to a heading?"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

FENCE = re.compile(r"^(```|~~~).*?^\1", re.M | re.S)
COMMENT = re.compile(r"<!--.*?-->", re.S)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
SOURCE = re.compile(r'\bsrc="([^"]*)"')
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.M)


def prose(page: Path) -> str:
    """A page without fenced code and comments."""
    return COMMENT.sub("", FENCE.sub("", page.read_text(encoding="utf-8")))


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    seen: dict[str, int] = {}
    found = []
    for heading in HEADING.findall(prose(page)):
        name = slug(heading)
        found.append(f"{name}-{seen[name]}" if name in seen else name)
        seen[name] = seen.get(name, 0) + 1
    return frozenset(found)


def broken(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    found = []
    text = CODE.sub("", prose(page))
    for target, anchor in [*LINK.findall(text), *((source, "") for source in SOURCE.findall(text))]:
        if "://" in target or target.startswith("mailto:"):
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.exists():
            found.append(f"{target}: no such file")
        elif anchor and path.suffix == ".md" and anchor not in anchors(path):
            found.append(f"{target}#{anchor}: no such heading")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_stay_inside_the_checkout(page: Path) -> None:
    targets = [target for target, _ in LINK.findall(prose(page)) if target and "://" not in target]
    assert [t for t in targets if t.startswith("/") or not (page.parent / t).resolve().is_relative_to(ROOT)] == []


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [("`paceline.plan/1`", "pacelineplan1"), ("How fast?", "how-fast"), ("See [a](b.md) - now", "see-a---now")],
)
def test_anchors_are_those_of_github(heading: str, anchor: str) -> None:
    assert slug(heading) == anchor


def test_broken_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    links = '[a](#one) [b](#two) [c](gone.md) [d](page.md#one) `[e](f.md)` <img src="i.png">'
    page.write_text(f"# One\n{links}\n```\n# Two [g](h.md)\n```\n")
    assert broken(page) == ["#two: no such heading", "gone.md: no such file", "i.png: no such file"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_rows_of_tables_are_on_lines_of_their_own(page: Path) -> None:
    joined = [line for line in prose(page).splitlines() if "|--" in line and not set(line) <= set("|-: ")]
    assert joined == []
