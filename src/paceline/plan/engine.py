"""What does `paceline.train` run? Its own rules are asked, so that a plan never proposes what it would refuse."""

from __future__ import annotations

from functools import cache

from paceline.core.errors import UsageError
from paceline.plan.setting import Layout
from paceline.plan.turns import Schedule
from paceline.train.layout import parse
from paceline.train.parallel.pp import Pipeline


@cache
def refusal(layout: Layout) -> str:
    """Return why the engine does not take a layout, in its words; nothing where it does."""
    try:
        parse(str(layout))
    except UsageError as error:
        return str(error)
    return ""


@cache
def chunks(schedule: Schedule) -> int:
    """Return the stages that a rank has by a schedule of the engine."""
    return Pipeline(schedule=schedule).stages_each
