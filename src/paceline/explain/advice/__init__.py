"""The pages of the remedies that ``tune`` cannot try. Users apply these remedies in the source or on the machine.

Each module contains the pages of some groups of remedies, as a mapping from the id to Markdown sections.
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.explain.advice import compute, loader, machine, optimizer, run


def advice_pages() -> Mapping[str, str]:
    """Return the Markdown sections of each page, by the id of the remedy."""
    return {**compute.PAGES, **loader.PAGES, **machine.PAGES, **optimizer.PAGES, **run.PAGES}
