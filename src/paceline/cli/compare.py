"""``paceline compare``: what got slower or faster between two runs, and why; exit 1 on a regression."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from paceline.cli.files import to_json, to_markdown
from paceline.cli.outputs import json_text, tell_written, write_text
from paceline.cli.runs import find_run, in_runs_folder
from paceline.explain.comparison import Comparison
from paceline.record.write import RUNS


class Fraction(click.ParamType[float]):
    """A fraction of one, written ``5%`` or ``0.05``."""

    name = "fraction"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Turn ``5%`` or ``0.05`` into 0.05; a bare 5 might mean either, and is refused."""
        text = str(value).strip()
        try:
            fraction = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            self.fail(f"{value!r} is no share; write 5% or 0.05", param, ctx)
        if not (0 <= fraction < 1 or (text.endswith("%") and fraction >= 0)):
            self.fail(f"{value!r} is out of range; write 5% or 0.05, from 0 up", param, ctx)
        return fraction


@click.command(name="compare", short_help="Say what got slower or faster between two runs, and why.")
@click.option(
    "--tolerance", type=Fraction(), default="5%", show_default=True, metavar="SHARE",
    help="Slow-down of a step to accept, as 5% or 0.05.",
)  # fmt: skip
@click.option("--strict", is_flag=True, help="Exit 1 also where a regression can be neither shown nor ruled out.")
@to_json
@to_markdown
@in_runs_folder
@click.argument("before")
@click.argument("after")
def command(before: str, after: str, **options: Any) -> int:
    """Compare the runs BEFORE and AFTER: time of a step with its interval, phase by phase, loss, memory, findings.

    Each is the path of a run's folder, a run id, the beginning of one, or `last`.

    \b
    paceline compare 20261121-0315 last
    paceline compare main-run last --tolerance 3% --json compare.json

    Exit code 1: AFTER is slower beyond the tolerance, and the 95 % interval excludes the tolerance.
    """
    from paceline.explain.compare import compare
    from paceline.record.read import read_run

    base = options["directory"] or RUNS
    runs = [read_run(find_run(name, base)) for name in (before, after)]
    comparison = compare(runs[0], runs[1], options["tolerance"])
    _present(comparison, options["json_file"], options["markdown"])
    return int(comparison.outcome in (("regression", "cannot-tell") if options["strict"] else ("regression",)))


def _present(comparison: Comparison, json_file: Path | None, markdown: Path | None) -> None:
    from rich.console import Console

    from paceline.report.compare_json import comparison_to_json
    from paceline.report.compare_markdown import comparison_to_markdown
    from paceline.report.compare_terminal import render_comparison

    render_comparison(comparison, Console())
    if json_file is not None:
        write_text(json_file, json_text(comparison_to_json(comparison)))
    if markdown is not None:
        write_text(markdown, comparison_to_markdown(comparison))
    tell_written(json_file, markdown)
