"""The HTML report of a run: one self-contained file, complete without JavaScript.

This module lays out the page; the package has a module for each section.
"""

from __future__ import annotations

from paceline.explain.model import Diagnosis
from paceline.explain.next_step import NextStep
from paceline.report import words
from paceline.report.page.closing import footer, unavailable
from paceline.report.page.findings import findings
from paceline.report.page.markup import Markup, element, section, sentence
from paceline.report.page.next_step import next_section
from paceline.report.page.shell import asset, document
from paceline.report.page.verdict import header, problems
from paceline.report.run.breakdown import breakdown
from paceline.report.run.gauges import gauges
from paceline.report.run.loader import loader
from paceline.report.run.loss import loss
from paceline.report.run.ranks import ranks
from paceline.report.run.resources import cost, memory
from paceline.report.run.timeline import timeline

_SECTIONS = (findings, breakdown, timeline, ranks, loader, loss, gauges, memory, cost, unavailable)


def to_html(diagnosis: Diagnosis, *, following: NextStep | None = None) -> str:
    """Return the diagnosis of a run as one self-contained HTML page.

    Args:
        diagnosis: The diagnosis.
        following: What to do next, shown at the top and at the end; None for nothing.
    """
    sections = [made for make in _SECTIONS if (made := make(diagnosis)) is not None]
    return document(
        f"{diagnosis.verdict}: paceline {diagnosis.run_id}",
        header(diagnosis, following),
        problems(diagnosis.problems, "Paceline could not read parts of the run's record:"),
        element("main", *sections, _closing(following)),
        footer(diagnosis),
        script=asset("report.js"),
    )


def _closing(following: NextStep | None) -> Markup | None:
    """Return the last section of the page, which repeats the next step; None without a next step."""
    if following is None:
        return None
    text = words.headline(following.text)
    if following.command is None:
        return section("next", "Next step", element("p", sentence(text)))
    return next_section(following.command, text)
