"""``paceline explain``: the page of a finding, offline; without one, a list of all findings."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

import click

from paceline.errors import UsageError
from paceline.explain.pages import Page, all_pages, markdown

_SAFETY = """
## Safety of a remedy

*exact*: the same numbers come out. *numeric*: the same algorithm in other rounding. *semantic*: other mathematics,
such as another batch size.
"""


@click.command(name="explain", short_help="Print the page of a finding: what it means, how it is decided, what helps.")
@click.argument("finding", required=False, metavar="[CODE|NAME]")
def command(finding: str | None) -> int:
    """Print what a finding means, how it is decided and what helps; without one, list all findings.

    \b
    paceline explain
    paceline explain DATA001
    paceline explain loader-serial
    """
    pages = all_pages()
    if finding is None:
        _list(pages)
    else:
        page = find_page(finding, pages)
        _print(markdown(page) + (_SAFETY if page.decided else ""))
    return 0


def find_page(finding: str, pages: Sequence[Page]) -> Page:
    """Return the page of a finding by its code or name, in whatever case.

    Raises:
        UsageError: There is no such finding.
    """
    wanted = finding.strip().lower().replace("_", "-")
    by_key = {key.lower(): page for page in pages for key in (page.code, page.name)}
    if wanted in by_key:
        return by_key[wanted]
    raise UsageError(
        f"there is no finding {finding!r}{_near(wanted, by_key)}; `paceline explain` lists all {len(pages)}"
    )


def _near(wanted: str, by_key: dict[str, Page]) -> str:
    within = [page for key, page in by_key.items() if len(wanted) > 2 and wanted in key]
    near = within or [by_key[key] for key in get_close_matches(wanted, by_key, n=3, cutoff=0.5)]
    names = list(dict.fromkeys(f"{page.code} {page.name}" for page in near))[:3]
    return f"; did you mean {' or '.join(names)}?" if names else ""


def _print(text: str) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    if console.is_terminal:
        console.print(Markdown(text), width=min(console.width, 100))
    else:
        click.echo(text.rstrip())


def _list(pages: Sequence[Page]) -> None:
    width = max(len(page.name) for page in pages)
    for group in dict.fromkeys(page.group for page in pages):
        click.secho(group, bold=True)
        for page in pages:
            if page.group == group:
                note = "" if page.decided else click.style("  [not decided by this version]", dim=True)
                click.echo(f"  {page.code:<8} {page.name:<{width}}  {page.when}{note}")
