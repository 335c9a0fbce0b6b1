"""What does `paceline.train` run? Its own rules are asked, so that a plan never proposes what it would refuse."""

from __future__ import annotations

from functools import cache

from paceline.errors import UsageError
from paceline.plan.setting import Layout
from paceline.plan.turns import Schedule
from paceline.train.layout import parse
from paceline.train.parallel.pp import Pipeline


@cache
def runs(layout: Layout) -> bool:
    """Whether the engine takes a layout."""
    try:
        parse(str(layout))
    except UsageError:
        return False
    return True


@cache
def chunks(schedule: Schedule) -> int:
    """Return the stages that a rank has by a schedule of the engine."""
    return Pipeline(schedule=schedule).stages_each
