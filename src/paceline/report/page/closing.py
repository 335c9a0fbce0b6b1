"""What was not measured and why, and what made this page."""

from __future__ import annotations

from paceline import __version__
from paceline.explain.model import Diagnosis
from paceline.report.page.markup import Markup, element, section, table


def unavailable(diagnosis: Diagnosis) -> Markup | None:
    """List what could not be measured, so that nobody takes it for zero."""
    if not diagnosis.unavailable:
        return None
    rows = ([what, why] for what, why in diagnosis.unavailable.items())
    return section("unavailable", "Not measured, and why", table((("What", ""), ("Why", "")), rows))


def footer(diagnosis: Diagnosis) -> Markup:
    """Name the run and the program that made the page."""
    made = f"paceline {__version__}, run {diagnosis.run_id}. One file that asks for nothing over the network."
    return element("footer", element("p", made))
