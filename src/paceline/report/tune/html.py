"""The HTML page of tuning: one self-contained file, complete without JavaScript.

This module lays out the page; the package has a module for each section.
"""

from __future__ import annotations

from paceline.report.page.closing import page_footer
from paceline.report.page.markup import element
from paceline.report.page.next_step import next_section
from paceline.report.page.shell import asset, document
from paceline.report.tune.head import first_sentence, header, headline
from paceline.report.tune.method import method
from paceline.report.tune.recipe import recipe, source
from paceline.report.tune.trials import batch, not_tried, trials
from paceline.tune.search.result import TuneResult


def to_html(tuned: TuneResult, *, recipe_file: str | None, next_command: str, diff: str | None = None) -> str:
    """Return the result of tuning as one self-contained HTML page.

    Args:
        tuned: The result of tuning.
        recipe_file: The path of the recipe; None if no change was kept.
        next_command: The command to run next.
        diff: The recipe as a unified diff of the program's source; None without a patch.
    """
    sections = (
        trials(tuned),
        recipe(tuned, recipe_file),
        source(diff),
        batch(tuned),
        not_tried(tuned),
        method(tuned),
    )
    return document(
        f"{headline(tuned)}: paceline tune",
        header(tuned, next_command),
        element("main", *sections, next_section(next_command, first_sentence(tuned))),
        page_footer(),
        style=asset("tune.css"),
    )
