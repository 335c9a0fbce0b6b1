"""The small makers below the sections: elements, paths, bars, choices."""

from __future__ import annotations

import json
import math

import pytest
from tests.report import sample

from paceline.explain.model import Gain
from paceline.report.page.axis import Axis
from paceline.report.page.chart import Frame, Series, columns, hover_data, line, stacked
from paceline.report.page.findings import gain_bar
from paceline.report.page.markup import Markup, element, sentence, table
from paceline.report.run.ranks import unusual

FRAME = Frame(x=Axis(low=0, high=10, unit="steps"), y=Axis(low=0, high=1, unit="s"))


def test_element_escapes_text_and_attributes_but_not_markup() -> None:
    made = element("p", "<b>", Markup("<i></i>"), None, class_='"x"', hidden=True, open_=False, aria_label=None)
    assert made == '<p class="&quot;x&quot;" hidden>&lt;b&gt;<i></i></p>'


def test_void_elements_are_closed_for_svg() -> None:
    assert element("path", d="M0 0") == '<path d="M0 0"/>'


def test_table_wants_a_cell_for_each_head() -> None:
    with pytest.raises(ValueError, match="zip"):
        table([("a", ""), ("b", "num")], [["1"]])


@pytest.mark.parametrize(
    ("text", "markup"),
    [
        ("waits 61% of it", "waits <b>61%</b> of it"),
        ("1.7 to 2.2 s each", "<b>1.7 to 2.2 s</b> each"),
        ("41 MiB/s, 1.5x", "<b>41 MiB/s</b>, <b>1.5x</b>"),
        ("step 412 on", "step 412 on"),
        ("call `f(<x>)`", "call <code>f(&lt;x&gt;)</code>"),
        ("train.py:31 s", "train.py:<b>31 s</b>"),
    ],
)
def test_sentence(text: str, markup: str) -> None:
    assert sentence(text) == markup


def test_line_breaks_where_values_are_missing() -> None:
    made = line(FRAME, [0, 1, 2, 3, 4], [0.0, 0.5, None, math.nan, 1.0], "x")
    assert 'd="M0 1000L200 500M800 0"' in made


def test_columns_reach_the_floor() -> None:
    assert 'd="M0 1000V500H1000V0H2000V1000z"' in columns(FRAME, [0, 5, 10], [0.5, 1.0], "forward")


def test_hover_data_is_json_without_nan() -> None:
    made = json.loads(hover_data([0, 1], [Series(name="a", unit="s", values=[math.nan, 0.123456])], s=[0.0, 1.5]))
    assert made == {"x": [0, 1], "series": [["a", "s", [None, 0.123]]], "others": {"s": [0, 1.5]}}


def test_stacked_writes_shares_only_where_they_fit() -> None:
    made = stacked([("forward", "forward", 0.97), ("other", "other", 0.03)], "label", named=True)
    assert "97%<" in made
    assert "3%<" not in made


@pytest.mark.parametrize(
    ("gain", "style"),
    [(Gain(low=1.5, high=2.0), "left:50.0%;width:50.0%"), (Gain(low=0.9, high=1.0), "left:0.0%;width:2.0%")],
)
def test_gain_bar(gain: Gain, style: str) -> None:
    assert style in gain_bar(gain, 2.0)


def test_unusual_ranks_are_those_named_and_those_apart() -> None:
    ranks = [sample.gpu_rank(i, sample.LATE if i == 70 else sample.WAITING) for i in range(100)]
    chosen = [rank.rank for rank in unusual(ranks, 3, {42})]
    assert {42, 70} <= set(chosen)
    assert len(chosen) == 3
