"""HOST002: does the host page memory to disk?"""

from __future__ import annotations

from paceline.explain.facts import Facts
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

PAGE = """
## What it means

The host has run out of memory and moves pages to and from disk. Everything that touches those pages waits for
the disk.

## How it is decided

At least 50 pages a second were swapped in on average while the program ran.

## What helps

`memory.smaller`: fewer workers, smaller caches, a smaller shuffle buffer; or a machine with more memory.
"""


def check(facts: Facts) -> Finding | None:
    """Decide HOST002."""
    pages = facts.host.swap_pages_per_s
    if pages is None or pages < 50:
        return None
    return Finding(
        code="HOST002",
        name="memory-swapping",
        severity="critical",
        confidence="high",
        time_share=None,
        gain=None,
        ranks=[r.record.rank for r in facts.ranks],
        evidence=[
            Evidence(
                text=f"{pages:,.0f} pages a second were swapped in ({facts.host.samples} readings)",
                value=pages,
                unit="pages/s",
            )
        ],
        remedies=[
            Remedy(
                id="memory.smaller",
                safety="exact",
                change="fewer workers, smaller caches, or a machine with more memory",
            )
        ],
        summary="the host pages memory to disk",
    )


RULE = Rule(code="HOST002", name="memory-swapping", page=PAGE, check=check)
