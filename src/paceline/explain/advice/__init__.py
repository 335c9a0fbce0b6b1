"""The pages of the remedies that ``tune`` cannot try. The user applies them in the source or on the machine.

Each module holds the pages of some families of remedies: a mapping from the id to Markdown sections.
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.explain.advice import compute, loader, machine, optimizer, run


def advice_pages() -> Mapping[str, str]:
    """Return the Markdown sections of each page, by the id of the remedy."""
    return {**compute.PAGES, **loader.PAGES, **machine.PAGES, **optimizer.PAGES, **run.PAGES}
