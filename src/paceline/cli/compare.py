"""``paceline compare``: what got slower or faster between two runs, and why; exit 1 on a regression."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.base.command import Command
from paceline.cli.base.files import check_writable, opens_page, to_html, to_json, to_markdown
from paceline.cli.base.outputs import json_text, tell_written, write_text
from paceline.cli.base.runs import complete_run, find_run, in_runs_folder
from paceline.record.write import RUNS

if TYPE_CHECKING:
    from paceline.explain.comparison import Comparison


class Fraction(click.ParamType[float]):
    """A parameter type for a fraction of one, written ``5%`` or ``0.05``."""

    name = "fraction"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return 0.05 for ``5%`` or ``0.05``. A bare 5 is refused, because its meaning is unclear."""
        text = str(value).strip()
        try:
            fraction = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            self.fail(f"{value!r} is not a percentage or fraction; write a value such as 5% or 0.05", param, ctx)
        if not (0 <= fraction < 1 or (text.endswith("%") and fraction >= 0)):
            self.fail(f"{value!r} is negative; write a value of at least 0, such as 5% or 0.05", param, ctx)
        return fraction


@click.command(
    cls=Command,
    name="compare",
    examples=(
        "paceline compare last~1 last",
        "paceline compare 20261121-0315 last --html compare.html",
        "paceline compare main-run last --tolerance 3% --json compare.json",
    ),
    groups={"When to fail": ("--tolerance", "--strict"), "Which runs": ("--dir",)},
    exit_codes={
        "1": "a regression: AFTER is slower than BEFORE by more than the tolerance, and noise cannot explain "
        "the difference"
    },
)
@click.option(
    "--tolerance", type=Fraction(), default="5%", show_default=True, metavar="SHARE",
    help="Largest increase of the step time that does not count as a regression, such as 5% or 0.05.",
)  # fmt: skip
@click.option(
    "--strict",
    is_flag=True,
    help="Also exit with code 1 if, because of noise, it is unclear whether there is a regression.",
)
@to_json
@to_markdown
@to_html
@opens_page("compare")
@in_runs_folder
@click.argument("before", shell_complete=complete_run)
@click.argument("after", shell_complete=complete_run)
def command(before: str, after: str, **options: Any) -> int:
    """Compare two runs and show what became slower or faster: step time, phases, loss, memory and findings.

    BEFORE and AFTER are run ids, the beginnings of ids, paths of runs' folders, `last`, or `last~1` for the run before
    the last.
    """
    from paceline.explain.compare import compare
    from paceline.record.read import read_run

    check_writable(options["json_file"], options["markdown"], options["html"])
    base = options["directory"] or RUNS
    runs = [read_run(find_run(name, base)) for name in (before, after)]
    comparison = compare(runs[0], runs[1], options["tolerance"])
    _present(comparison, options["json_file"], options["markdown"], options["html"])
    return int(comparison.outcome in (("regression", "cannot-tell") if options["strict"] else ("regression",)))


def _present(comparison: Comparison, json_file: Path | None, markdown: Path | None, html: Path | None) -> None:
    from rich.console import Console

    from paceline.report.compare.html import comparison_to_html
    from paceline.report.compare.json import comparison_to_json
    from paceline.report.compare.markdown import comparison_to_markdown
    from paceline.report.compare.terminal import render_comparison

    render_comparison(comparison, Console())
    if json_file is not None:
        write_text(json_file, json_text(comparison_to_json(comparison)))
    if markdown is not None:
        write_text(markdown, comparison_to_markdown(comparison))
    if html is not None:
        write_text(html, comparison_to_html(comparison))
    tell_written(json_file, markdown, html)
