"""Does the documentation site hold every page, and is a page that loads something over the network found?"""

from __future__ import annotations

import re
from pathlib import Path

import docs_site
import pytest

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs" / "decisions"


def navigation() -> list[str]:
    """The entries of the navigation in ``mkdocs.yml``: pages, and folders with a slash."""
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return re.findall(r"^ +- (?:[\w ]+: )?([\w./-]+(?:\.md|/))$", config.partition("\nnav:\n")[2], re.M)


def test_every_page_is_in_the_navigation() -> None:
    entries = navigation()
    pages = {path.relative_to(docs_site.DOCS).as_posix() for path in docs_site.DOCS.rglob("*.md")}
    folders = tuple(entry for entry in entries if entry.endswith("/"))
    assert {page for page in pages if page not in entries and not page.startswith(folders)} == set()
    assert {entry for entry in entries if not (docs_site.DOCS / entry).exists()} == set()


def test_a_folder_stands_for_its_pages_that_are_not_named() -> None:
    pages = ["a/one.md", "a/two.md", "b/z.md", "b/index.md", "b/y.md"]
    nav = [{"A": ["a/two.md", "a/"]}, {"B": "b/"}]
    assert docs_site.expand(nav, pages) == [{"A": ["a/two.md", "a/one.md"]}, {"B": ["b/index.md", "b/y.md", "b/z.md"]}]


@pytest.mark.parametrize(
    ("link", "rewritten"),
    [
        ("[f](../../CHANGELOG.md#new)", "[f](../checkout/CHANGELOG.md#new)"),
        ("![p](../../LICENSE)", "![p](../checkout/LICENSE)"),
        ("[`benchmarks`](../../benchmarks)", "`benchmarks`"),
        ("[in](cost.md#a)", "[in](cost.md#a)"),
        ("[up](../tutorial.md)", "[up](../tutorial.md)"),
        ("[out](https://example.org)", "[out](https://example.org)"),
    ],
)
def test_links_to_the_checkout_lead_into_the_site(link: str, rewritten: str) -> None:
    assert docs_site.rewrite_links(link, "reference/tune.md") == rewritten


@pytest.mark.parametrize(
    ("link", "rewritten"),
    [
        ("[d](docs/decisions/index.md#a)", "[d](../decisions/index.md#a)"),
        ("[c](CONTRIBUTING.md)", "[c](CONTRIBUTING.md)"),
        ("[m](Makefile)", "m"),
        ("[out](https://example.org)", "[out](https://example.org)"),
    ],
)
def test_links_of_a_page_of_the_checkout_lead_into_the_site(link: str, rewritten: str) -> None:
    assert docs_site.rewrite_links_outside(link, "checkout/CONTRIBUTING.md") == rewritten


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ('<script src="https://cdn.example/x.js"></script>', 1),
        ('<link rel="stylesheet" href="//fonts.example/css">', 1),
        ('<link href="https://fonts.example/" rel="preconnect">', 1),
        ("<img src=http://example.org/a.png>", 1),
        ("<style>@import 'https://x.example/a.css'; a{background:url(https://x.example/b)}</style>", 2),
        ('<a href="https://example.org">read</a><img src="a.png"><link rel="canonical" href="https://p.example/">', 0),
    ],
)
def test_what_a_page_loads_over_the_network_is_found(tmp_path: Path, html: str, found: int) -> None:
    (tmp_path / "page.html").write_text(html)
    assert len(docs_site.requests_of(tmp_path)) == found
    assert docs_site.main(["check", str(tmp_path)]) == min(found, 1)


def test_the_site_is_built_with_the_extra() -> None:
    assert any(line.startswith("mkdocs-material") for line in docs_site.requirements())


def test_the_list_of_decisions_has_their_titles() -> None:
    listed = re.findall(r"^- \[(.+)\]\((.+)\)$", (DECISIONS / "index.md").read_text(encoding="utf-8"), re.M)
    pages = sorted(path for path in DECISIONS.glob("[0-9]*.md") if not path.name.startswith("0000"))
    titles = [path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for path in pages]
    assert listed == list(zip(titles, [path.name for path in pages]))
