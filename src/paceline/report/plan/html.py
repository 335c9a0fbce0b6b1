"""The HTML page of a plan: one self-contained file, complete without JavaScript.

This module lays out the page; the package has a module for each section.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from paceline.plan.search.advice import Advice
from paceline.plan.search.offers import Offers
from paceline.plan.search.wish import Wish
from paceline.report.page.closing import page_footer
from paceline.report.page.markup import Markup, element
from paceline.report.page.next_step import Then, next_section
from paceline.report.page.shell import asset, document
from paceline.report.plan.front import front, rejected
from paceline.report.plan.head import header, headline, offers_header, offers_headline
from paceline.report.plan.money import cost, offers, refused
from paceline.report.plan.parts import memory, time
from paceline.report.plan.question import assumed, question
from paceline.report.plan.scaling import scaling
from paceline.report.plan.stages import stages


def to_html(advice: Advice, *, then: Then | None = None) -> str:
    """Return the plans for one cluster as one self-contained HTML page.

    Args:
        advice: The plans.
        then: What to do next, with its command; None for nothing.
    """
    sections = (time, memory, cost, stages, front, scaling, rejected)
    return _page(
        headline(advice),
        header(advice, then),
        [*(made(advice) for made in sections), question(advice.wish), assumed(advice.wish)],
        then,
    )


def offers_to_html(wish: Wish, found: Offers, steps: int, today: date, *, then: Then | None = None) -> str:
    """Return the machine offers that no other offer beats as one self-contained HTML page.

    Args:
        wish: What is to be trained; the cluster in it is not used.
        found: The offers.
        steps: Number of training steps.
        today: The date used for the age of prices.
        then: What to do next, with its command; None for nothing.
    """
    return _page(
        offers_headline(found.best),
        offers_header(wish, found.best, steps, then),
        [offers(found, today), refused(found.refused), assumed(wish)],
        then,
    )


def _page(title: str, head: Markup, sections: Sequence[Markup | None], then: Then | None) -> str:
    last = next_section(then.command, then.what) if then is not None else None
    return document(
        f"{title}: paceline plan",
        head,
        element("main", *sections, last),
        page_footer(),
        style=asset("trace.css") + asset("plan.css"),
    )
