"""``paceline explain``: print the page of a finding or a remedy, or list all of them."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from paceline.cli.base.command import Command
from paceline.core.errors import UsageError, nearest
from paceline.core.remedies import REMEDIES, SAFETY_MEANING, RemedyInfo, Safety
from paceline.explain.pages import Page, all_pages
from paceline.explain.pages import markdown as finding_markdown
from paceline.explain.verdict import NOT_FINDINGS

if TYPE_CHECKING:
    from paceline.tune.pages import RemedyPage


_LEAST_TEXT = 36  # least number of columns for text beside a name
_MOST = 9  # number of names that an error proposes


def _complete_name(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the codes, names and remedy ids that begin with the given text, for shell completion."""
    names = [*(key for page in all_pages() for key in (page.code, page.name)), *REMEDIES, *NOT_FINDINGS]
    return [name for name in names if name.lower().startswith(incomplete.lower())]


@click.command(
    cls=Command,
    name="explain",
    examples=(
        "paceline explain",
        "paceline explain DATA001",
        "paceline explain loader-serial",
        "paceline explain loader.workers",
    ),
)
@click.argument("name", required=False, metavar="[FINDING|REMEDY]", shell_complete=_complete_name)
def command(name: str | None) -> int:
    """Print the page of a finding or a remedy; without an argument, list all findings and remedies.

    The page of a finding says what the finding means, how it is detected and which remedies help. The page of a remedy
    says when the remedy helps, how safe it is, what it sets and how to apply it by hand. The verdicts that are
    not findings (balanced, too-short, no-steps) have a page too.
    """
    if name is None:
        _list_findings(all_pages())
        _list_remedies(list(REMEDIES.values()))
        return 0
    if name.strip().lower() in NOT_FINDINGS:
        _print(f"# {name.strip().lower()}\n\nA verdict without a finding. {NOT_FINDINGS[name.strip().lower()]}")
        return 0
    page = find_page(name)
    if isinstance(page, Page):
        classes = [safety for remedy in page.remedies for safety in REMEDIES[remedy].classes]
        _print(finding_markdown(page) + _meanings(classes))
    else:
        from paceline.tune.pages import markdown as remedy_markdown

        _print(remedy_markdown(page) + _meanings(page.info.classes))
    return 0


def find_page(name: str) -> Page | RemedyPage:
    """Return the page of a finding or a remedy.

    Args:
        name: The code or the name of a finding, or the id of a remedy. Case does not matter.

    Raises:
        UsageError: No finding and no remedy has this name.
    """
    from paceline.tune.pages import remedy_pages

    findings = all_pages()
    by_key: dict[str, Page | RemedyPage] = {key.lower(): page for page in findings for key in (page.code, page.name)}
    by_key |= {page.info.id: page for page in remedy_pages()}
    wanted = name.strip().lower()
    for key in (wanted, wanted.replace("_", "-"), wanted.replace("-", "_")):
        if key in by_key:
            return by_key[key]
    raise UsageError(
        f"there is no finding or remedy {name!r}{_near(wanted, by_key)}; "
        f"`paceline explain` lists all {len(findings)} findings and {len(REMEDIES)} remedies"
    )


def _near(wanted: str, by_key: Mapping[str, Page | RemedyPage]) -> str:
    """Return the end of an error message, which suggests the most similar names; empty if none is similar."""
    within = [key for key in by_key if len(wanted) > 2 and wanted in key]
    near = within or nearest(wanted, by_key, 3, 0.5)
    titles = list(dict.fromkeys(_title(by_key[key]) for key in near))
    more = f" or {len(titles) - _MOST} more" if len(titles) > _MOST else ""
    return f"; did you mean {', '.join(titles[:_MOST])}{more}?" if titles else ""


def _title(page: Page | RemedyPage) -> str:
    return f"{page.code} {page.name}" if isinstance(page, Page) else page.info.id


def _meanings(classes: Sequence[Safety]) -> str:
    """Return a section that explains the given safety classes; empty without any."""
    if not classes:
        return ""
    return "\n".join(["\n## Safety classes\n", *_each_meaning(classes), ""])


def _each_meaning(classes: Sequence[Safety]) -> Iterator[str]:
    return (f"- *{name}*: {text}" for name, text in SAFETY_MEANING.items() if name in classes)


def _print(text: str) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    if console.is_terminal:
        console.print(Markdown(text), width=min(console.width, 100))
    else:
        click.echo(text.rstrip())


def _list_findings(pages: Sequence[Page]) -> None:
    width = max(len(page.name) for page in pages)
    for group in dict.fromkeys(page.group for page in pages):
        click.secho(f"Findings: {group}", bold=True)
        for page in pages:
            if page.group == group:
                note = "" if page.decided else " (not detected by this version)"
                click.echo(_entry(f"  {page.code:<8} {page.name:<{width}}  ", page.when + note))


def _entry(name: str, text: str) -> str:
    """Return an entry of a list as text; on a terminal, it is wrapped beside or below the name of the entry."""
    if not sys.stdout.isatty():
        return name + text
    width = shutil.get_terminal_size().columns
    beside = width - len(name) >= _LEAST_TEXT
    indent = " " * (len(name) if beside else 4)
    first = name if beside else f"{name.rstrip()}\n{indent}"
    lines = textwrap.wrap(text, max(20, width - len(indent)), break_on_hyphens=False)
    return first + f"\n{indent}".join(lines)


def _list_remedies(rows: Sequence[RemedyInfo]) -> None:
    width = max(len(row.id) for row in rows)
    click.secho("Remedies", bold=True)
    for row in rows:
        click.echo(_entry(f"  {row.id:<{width}}  ", f"{row.title} ({', '.join(row.classes)})"))
    click.echo("\n`paceline explain NAME` prints the page of the finding or remedy NAME, such as loader.workers.")
