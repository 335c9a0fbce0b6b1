"""What the site needs beyond MkDocs: navigation by folder, files of the checkout, a check of requests.

MkDocs loads this file as a hook (``mkdocs.yml``). Pages link to files outside of ``docs/`` by relative paths, as they
are read in a checkout; the hook adds those files to the site below ``checkout/`` and points the links there. A link to
a folder outside of ``docs/`` becomes plain text.

    python tools/docs_site.py requirements    # print what the site is built with, from the extra `docs`
    python tools/docs_site.py check site      # exit 1 if a built page loads anything over the network
"""

from __future__ import annotations

import posixpath
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
OUTSIDE = "checkout"  # folder of the site for files that are not below docs/

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
LOADED = re.compile(
    r"""<(?:script|img|source|iframe|audio|video|embed)\b[^>]*?\bsrc=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|preload|preconnect|dns-prefetch|icon|modulepreload))"""
    r"""[^>]*?\bhref=["']?((?:https?:)?//[^"'\s>]+)""",
    re.I,
)
LOADED_BY_STYLE = re.compile(r"""(?:url\(|@import\s+)["']?((?:https?:)?//[^"')\s]+)""", re.I)


def target_outside(page: str, target: str) -> str | None:
    """Return the path from the root of the checkout of a link that leaves ``docs/``, else None.

    Args:
        page: Path of the linking page below ``docs/``, such as ``reference/cost.md``.
        target: The link, without its anchor.
    """
    if "://" in target or target.startswith(("/", "mailto:")):
        return None
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    return None if path == "docs" or path.startswith(("docs/", "../")) else path


def outside_files() -> set[str]:
    """Return the files outside of ``docs/`` that its pages link to, as paths from the root of the checkout."""
    found = set()
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).as_posix()
        targets = (target_outside(name, link[3]) for link in LINK.finditer(page.read_text(encoding="utf-8")))
        found |= {target for target in targets if target and (ROOT / target).is_file()}
    return found


def rewrite_links(text: str, page: str) -> str:
    """Return a page with its links to files of the checkout pointing into the site."""

    def rewrite(link: re.Match[str]) -> str:
        outside = target_outside(page, link[3])
        if outside is None:
            return link[0]
        if (ROOT / outside).is_dir():
            return link[2]
        here = posixpath.dirname(page) or "."
        return f"{link[1]}[{link[2]}]({posixpath.relpath(f'{OUTSIDE}/{outside}', here)}{link[4] or ''})"

    return LINK.sub(rewrite, text)


def rewrite_links_outside(text: str, page: str) -> str:
    """Return a page of the checkout, such as ``checkout/CONTRIBUTING.md``, with its links pointing into the site.

    Links to pages of the documentation and to other added files lead there; links to other files become plain text.
    """

    def rewrite(link: re.Match[str]) -> str:
        if "://" in link[3]:
            return link[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page.removeprefix(f"{OUTSIDE}/")), link[3]))
        if not target.startswith("docs/") and target not in outside_files():
            return link[2]
        in_site = target.removeprefix("docs/") if target.startswith("docs/") else f"{OUTSIDE}/{target}"
        return f"{link[1]}[{link[2]}]({posixpath.relpath(in_site, posixpath.dirname(page))}{link[4] or ''})"

    return LINK.sub(rewrite, text)


def expand(nav: list[Any], pages: list[str]) -> list[Any]:
    """Replace each ``folder/`` of a navigation by the pages of that folder that it does not name itself."""
    named = set(_named(nav))
    return [entry for item in nav for entry in _expanded(item, [page for page in pages if page not in named])]


def _named(nav: list[Any]) -> Iterator[str]:
    for item in nav:
        for value in item.values() if isinstance(item, dict) else [item]:
            yield from _named(value) if isinstance(value, list) else [value]


def _expanded(item: Any, pages: list[str]) -> list[Any]:
    if isinstance(item, dict):
        title, value = next(iter(item.items()))
        inside = value if isinstance(value, list) else [value]
        entries = [entry for one in inside for entry in _expanded(one, pages)]
        return [{title: entries if isinstance(value, list) or value.endswith("/") else value}]
    if not item.endswith("/"):
        return [item]
    return sorted(
        (page for page in pages if page.startswith(item)), key=lambda page: (Path(page).name != "index.md", page)
    )


def on_config(config: Any) -> Any:
    """Expand the folders of the navigation (an event of MkDocs)."""
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md") if "template" not in page.name]
    config["nav"] = expand(config["nav"], pages)
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the linked files of the checkout (an event of MkDocs)."""
    from mkdocs.structure.files import File

    for path in sorted(outside_files()):
        files.append(File.generated(config, f"{OUTSIDE}/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links that leave ``docs/`` at the added files (an event of MkDocs)."""
    name = page.file.src_uri
    return (rewrite_links_outside if name.startswith(f"{OUTSIDE}/") else rewrite_links)(markdown, name)


def requests_of(site: Path) -> list[str]:
    """Return what the pages and style sheets of a built site load over the network, as ``file: address``."""
    found = []
    for path in sorted([*site.rglob("*.html"), *site.rglob("*.css"), *site.rglob("*.svg")]):
        text = path.read_text(encoding="utf-8")
        matches = [*LOADED_BY_STYLE.finditer(text), *(LOADED.finditer(text) if path.suffix == ".html" else [])]
        found += [f"{path.relative_to(site)}: {next(filter(None, match.groups()))}" for match in matches]
    return found


def requirements() -> list[str]:
    """Return the requirements of the extra ``docs``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return list(project["optional-dependencies"]["docs"])


def main(arguments: list[str]) -> int:
    """Print the requirements or check a built site; return the exit code."""
    if arguments == ["requirements"]:
        print("\n".join(requirements()))
        return 0
    if len(arguments) == 2 and arguments[0] == "check":
        found = requests_of(Path(arguments[1]))
        print("\n".join(found) or f"docs_site: {arguments[1]} loads nothing over the network")
        return min(len(found), 1)
    print("usage: docs_site.py requirements | check FOLDER", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
