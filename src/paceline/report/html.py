"""The HTML report of a run: one file without requests, complete without JavaScript.

The page is laid out here; `page/` has one file per section.
"""

from __future__ import annotations

from paceline.explain.model import Diagnosis
from paceline.report.page.breakdown import breakdown
from paceline.report.page.closing import footer, unavailable
from paceline.report.page.findings import findings
from paceline.report.page.gauges import gauges
from paceline.report.page.loader import loader
from paceline.report.page.loss import loss
from paceline.report.page.markup import element
from paceline.report.page.next_step import next_section
from paceline.report.page.ranks import ranks
from paceline.report.page.resources import cost, memory
from paceline.report.page.shell import asset, document
from paceline.report.page.timeline import timeline
from paceline.report.page.verdict import first_sentence, header, problems

_SECTIONS = (findings, breakdown, timeline, ranks, loader, loss, gauges, memory, cost, unavailable)


def to_html(diagnosis: Diagnosis, *, next_command: str = "") -> str:
    """Return a diagnosis as one self-contained HTML page.

    Args:
        diagnosis: What was found.
        next_command: The command to type next, shown at the top and at the end; empty for none.
    """
    sections = [made for make in _SECTIONS if (made := make(diagnosis)) is not None]
    return document(
        f"{diagnosis.verdict}: paceline {diagnosis.run_id}",
        header(diagnosis, next_command),
        problems(diagnosis.problems, "Paceline could not read parts of the run's record:"),
        element("main", *sections, next_section(next_command, first_sentence(diagnosis))),
        footer(diagnosis),
        script=asset("report.js"),
    )
