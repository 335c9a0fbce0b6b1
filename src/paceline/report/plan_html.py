"""What does a person open of a plan? One file that asks for nothing, and needs no JavaScript.

The page is laid out here; `page/plan_*.py` has one file per part.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from paceline import __version__
from paceline.plan.advice import Advice
from paceline.plan.catalogue import Offers
from paceline.plan.search import Wish
from paceline.report.page.markup import Markup, element
from paceline.report.page.plan_front import front, rejected
from paceline.report.page.plan_head import header, headline, offers_header, offers_headline
from paceline.report.page.plan_money import cost, offers, refused
from paceline.report.page.plan_parts import memory, time
from paceline.report.page.plan_question import assumed, question
from paceline.report.page.plan_scaling import scaling
from paceline.report.page.plan_stages import stages
from paceline.report.page.shell import asset, document


def to_html(advice: Advice) -> str:
    """Write the plans for one cluster as one self-contained HTML page."""
    sections = (time, memory, cost, stages, front, scaling, rejected)
    return _page(
        headline(advice),
        header(advice),
        [question(advice.wish), *(made(advice) for made in sections), assumed(advice.wish)],
    )


def offers_to_html(wish: Wish, found: Offers, steps: int, today: date) -> str:
    """Write the machines that no others beat as one self-contained HTML page.

    Args:
        wish: What is to be trained; its cluster says nothing.
        found: The machines.
        steps: Of all the training.
        today: The day that the age of prices is counted to.
    """
    return _page(
        offers_headline(found.best),
        offers_header(wish, found.best, steps),
        [offers(found, today), refused(found.refused), assumed(wish)],
    )


def _page(title: str, head: Markup, sections: Sequence[Markup | None]) -> str:
    made = f"paceline {__version__}. One file that asks for nothing over the network."
    return document(
        f"{title}: paceline plan",
        head,
        element("main", *sections),
        element("footer", element("p", made)),
        style=asset("trace.css") + asset("plan.css"),
    )
