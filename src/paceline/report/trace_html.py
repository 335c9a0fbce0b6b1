"""What does a person open of profiler captures? One file that asks for nothing, with or without JavaScript.

The page is laid out here; `page/trace_*.py` has one file per part.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline import __version__
from paceline.explain.model import Finding
from paceline.report.page.findings import listed
from paceline.report.page.markup import element
from paceline.report.page.shell import asset, document
from paceline.report.page.trace_head import header, said
from paceline.report.page.trace_path import path
from paceline.report.page.trace_ranks import ranks
from paceline.report.page.trace_tables import against, collectives, kernels, launchers
from paceline.report.page.trace_timeline import timeline
from paceline.report.page.verdict import problems
from paceline.traces.gallery import Gallery
from paceline.traces.many import Traces


def to_html(traces: Traces, findings: Sequence[Finding], gallery: Gallery | None, before: Traces | None = None) -> str:
    """Write what captures show as one self-contained HTML page.

    Args:
        traces: The captures.
        findings: What they show, the verdict first.
        gallery: Pictures of some ranks.
        before: Captures to compare with.
    """
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
    made = f"paceline {__version__}. One file that asks for nothing over the network."
    return document(
        f"{told}: paceline trace",
        header(traces, findings),
        problems(traces.problems, "What could not be read, or does not fit together:"),
        element("main", *sections),
        element("footer", element("p", made)),
        style=asset("trace.css"),
        script=asset("trace.js"),
    )
