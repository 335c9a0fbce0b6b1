from __future__ import annotations

import pytest

from paceline.core.errors import UsageError
from paceline.plan.cost.case import PlannedLayout, parse_layout


def test_layouts_are_read_as_they_are_written():
    layout = parse_layout("dp=2,shard=4,tp=2,pp=2")
    assert layout == PlannedLayout(dp=2, shard=4, tp=2, pp=2)
    assert layout.ranks == 32
    assert parse_layout(str(layout)) == layout
    assert parse_layout("dp=1") == PlannedLayout()


@pytest.mark.parametrize("text", ["dp=2,dp=4", "tp=0", "tp=two", "zero=3", "tp"])
def test_a_layout_that_makes_no_sense_is_refused(text):
    with pytest.raises(UsageError):
        parse_layout(text)
