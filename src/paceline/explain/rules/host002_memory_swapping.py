"""HOST002: the host moves memory pages to disk."""

from __future__ import annotations

from paceline.core import units
from paceline.explain.analysis.run_analysis import RunAnalysis
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

PAGE = """
## What it means

The host does not have enough memory, so it moves memory pages to and from disk (swapping). If the program uses a page
that was moved to disk, it waits until the page is read back.

## How it is detected

Paceline reports `memory-swapping` if, while the program ran, the host read at least 50 memory pages per second from
swap on average.

## What helps

- `host.memory`: use fewer loader workers, smaller caches, a smaller shuffle buffer, or a machine with more memory.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding HOST002, or None if it does not apply."""
    pages = analysis.host.swap_pages_per_s
    if pages is None or pages < 50:
        return None
    return Finding(
        code="HOST002",
        name="memory-swapping",
        severity="critical",
        confidence="high",
        time_share=None,
        gain=None,
        ranks=[r.record.rank for r in analysis.ranks],
        evidence=[
            Evidence(
                text=f"{pages:,.0f} memory pages per second were read back from swap "
                f"({units.count(analysis.host.samples, 'reading')})",
                value=pages,
                unit="pages/s",
            )
        ],
        remedies=[
            Remedy(
                id="host.memory",
                safety="exact",
                change="use fewer workers, smaller caches, or a machine with more memory",
            )
        ],
        summary="the host moves memory pages to disk (swapping)",
    )


RULE = Rule(code="HOST002", name="memory-swapping", page=PAGE, check=check)
