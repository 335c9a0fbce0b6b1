"""Is a layout read as written, and refused with a way out where it cannot be?"""

from __future__ import annotations

import pytest

from paceline.core.errors import UsageError
from paceline.core.layout import Layout, check_ranks, parse
from paceline.train.ranks.world import mesh_axes


def test_axes_are_read_and_printed_slowest_first():
    layout = parse(" tp=2, dp=2,pp=4 ")
    assert layout == Layout(dp=2, tp=2, pp=4)
    assert (str(layout), layout.ranks, layout.samples) == ("pp=4,dp=2,tp=2", 16, 2)
    assert parse(str(layout)) == layout


def test_nothing_is_one_process():
    assert (parse(""), str(parse("tp=1")), parse("").in_use) == (Layout(), "dp=1", ())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("shards=2", "did you mean shard?"),
        ("xyz=2", "there are: dp, shard, tp, pp, cp"),
        ("dp=2,dp=4", "dp is given twice"),
        ("dp=0", "needs at least 1 rank"),
        ("dp", "'dp' is not an axis with a size; write dp=2"),
        ("dp=-2", "not an axis with a size"),
        ("dp=2,shard=2,tp=2,pp=2", "at most 3"),
        ("cp=2,tp=2", "cp and tp cannot be combined"),
    ],
)
def test_what_is_wrong_is_named(text, says):
    with pytest.raises(UsageError, match=says.replace("?", r"\?")):
        parse(text)


def test_the_number_of_ranks_must_fit():
    with pytest.raises(UsageError, match=r"takes 8 ranks \(dp 4 x tp 2\), and there are 2; .*--nproc-per-node 8"):
        check_ranks(parse("dp=4,tp=2"), 2)
    check_ranks(parse("dp=4,tp=2"), 8)


def test_replicas_of_split_parameters_are_fsdps():
    """DDP and `replicate()` are not told of parameters that are split already."""
    assert mesh_axes(parse("dp=2")) == ("dp",)
    assert mesh_axes(parse("dp=2,tp=2")) == ("dp", "shard", "tp")
    assert mesh_axes(parse("dp=2,pp=2")) == ("pp", "dp", "shard")
    assert mesh_axes(parse("shard=2,tp=2")) == ("shard", "tp")
