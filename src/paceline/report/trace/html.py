"""The HTML page of profiler captures: one self-contained file, complete without JavaScript.

This module lays out the page; the package has a module for each section.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain.model import Finding
from paceline.report.page.closing import page_footer
from paceline.report.page.findings import listed
from paceline.report.page.markup import element
from paceline.report.page.next_step import next_section
from paceline.report.page.shell import asset, document
from paceline.report.page.verdict import problems
from paceline.report.trace.head import first_sentence, header, said
from paceline.report.trace.path_chart import path
from paceline.report.trace.ranks import ranks
from paceline.report.trace.tables import against, collectives, kernels, launchers
from paceline.report.trace.timeline import timeline
from paceline.traces.analyze.ranks import Traces
from paceline.traces.analyze.timeline import TimelineData


def to_html(
    traces: Traces,
    findings: Sequence[Finding],
    gallery: TimelineData | None,
    before: Traces | None = None,
    *,
    next_command: str = "",
) -> str:
    """Return the analysis of captures as one self-contained HTML page.

    Args:
        traces: The captures.
        findings: The findings, the verdict first.
        gallery: The timelines of some ranks; None to show no timelines.
        before: Earlier captures to compare with; None for no comparison.
        next_command: The command to run next; empty for `paceline explain` of the first finding, if there is one.
    """
    command = next_command or (f"paceline explain {findings[0].code}" if findings else "")
    told = said(traces, findings)
    sections = (
        listed(findings, told),
        against(traces, before),
        timeline(gallery),
        ranks(traces),
        path(traces),
        kernels(traces),
        launchers(traces),
        collectives(traces),
    )
    return document(
        f"{told}: paceline trace",
        header(traces, findings, command),
        problems(traces.problems, "Parts of the captures that could not be read, or that contradict each other:"),
        element("main", *sections, next_section(command, first_sentence(findings))),
        page_footer(),
        style=asset("trace.css"),
        script=asset("trace.js"),
    )
