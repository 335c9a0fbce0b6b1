"""The HTML page of a comparison: one self-contained file, complete without JavaScript.

This module lays out the page; the package has a module for each section.
"""

from __future__ import annotations

from paceline.explain.comparison import METHOD, Comparison
from paceline.report.compare.changes import findings, phases, settings
from paceline.report.compare.curves import losses, step_times
from paceline.report.compare.head import first_sentence, header, headline
from paceline.report.compare.rows import next_command as next_of
from paceline.report.page.closing import page_footer
from paceline.report.page.markup import element
from paceline.report.page.next_step import next_section
from paceline.report.page.shell import asset, document
from paceline.report.words import headline as sentence_case


def comparison_to_html(comparison: Comparison, *, next_command: str | None = None) -> str:
    """Return a comparison as one self-contained HTML page.

    Args:
        comparison: The comparison.
        next_command: The command to run next; None for the command that the terminal output names.
    """
    command = next_of(comparison) if next_command is None else next_command
    sections = (phases, step_times, losses, findings, settings)
    return document(
        f"{headline(comparison)}: paceline compare",
        header(comparison, command),
        element("main", *(made(comparison) for made in sections), next_section(command, first_sentence(comparison))),
        page_footer("", f"Times: {sentence_case(METHOD)}."),
        style=asset("compare.css"),
        script=asset("report.js"),
    )
