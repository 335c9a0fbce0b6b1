"""What does a person open when the run is over? One file that asks for nothing, with or without JavaScript.

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
from paceline.report.page.ranks import ranks
from paceline.report.page.resources import cost, memory
from paceline.report.page.shell import asset, document
from paceline.report.page.timeline import timeline
from paceline.report.page.verdict import header, problems

_SECTIONS = (findings, breakdown, timeline, ranks, loader, loss, gauges, memory, cost, unavailable)


def to_html(diagnosis: Diagnosis) -> str:
    """Write a diagnosis as one self-contained HTML page."""
    sections = [made for make in _SECTIONS if (made := make(diagnosis)) is not None]
    return document(
        f"{diagnosis.verdict}: paceline {diagnosis.run_id}",
        header(diagnosis),
        problems(diagnosis.problems, "Parts of the record could not be read:"),
        element("main", *sections),
        footer(diagnosis),
        script=asset("report.js"),
    )
