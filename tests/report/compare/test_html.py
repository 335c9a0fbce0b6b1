"""The page of a comparison: both runs over each other, closed to hostile strings, and it asks for nothing."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from tests.explain.written_run import steady_rows, write_run
from tests.report.reading import Reading
from tests.report.run.test_html import LIMIT, LOADING, section
from tests.report.sample import HOSTILE

from paceline.explain.compare import compare
from paceline.explain.comparison import Comparison, SettingDifference
from paceline.record.read import read_run
from paceline.report.compare.html import comparison_to_html
from paceline.report.compare.rows import next_command

COUNT = 120


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("runs")
    noise = [np.exp(0.01 * np.random.default_rng(seed).standard_normal(COUNT)) for seed in (1, 2)]
    before = write_run(place / "20261121-031500-train-3fa2", steady_rows(0.0412 * noise[0]))
    waits = {"data_wait": [0.0101] * COUNT}
    after = write_run(place / "20261121-031600-train-93cc", steady_rows(0.0513 * noise[1], waits), torch="2.14.0")
    return before, after


@pytest.fixture(scope="module")
def comparison(both: tuple[Path, Path]) -> Comparison:
    return compare(read_run(both[0]), read_run(both[1]), 0.05)


@pytest.fixture(scope="module")
def reading(comparison: Comparison) -> Reading:
    return Reading(comparison_to_html(comparison))


def test_well_formed_small_and_asks_for_nothing(comparison: Comparison, reading: Reading) -> None:
    assert (reading.unmatched, reading.open) == ([], [])
    assert len(comparison_to_html(comparison).encode()) < LIMIT
    loads = [(name, value) for node in reading.nodes for name, value in node.attributes.items() if name in LOADING]
    assert loads == [("href", "data:,")]
    assert all(node.attributes.get("aria-label") for node in reading.nodes if node.attributes.get("role") == "img")


def test_the_head_says_how_much_and_what_to_do(comparison: Comparison, reading: Reading) -> None:
    assert re.match(r"A step takes 2[45]% more time: a regression$", reading.all("h1")[0].text)
    head = reading.all("header")[0].text
    assert re.search(r"95% CI \+2\d% to \+2\d%; tolerance 5.0%", head)
    assert next_command(comparison) in head
    assert next_command(comparison) in section(reading, "next")


def test_phases_are_paired_bars_in_proportion(comparison: Comparison, reading: Reading) -> None:
    text = section(reading, "phases")
    assert "data wait0 s10.1 ms+10.1 ms (+10.1 to +10.1 ms)" in text.replace("\n", "")
    page = comparison_to_html(comparison)
    pair = page[page.index('class="pair"') :]
    widths = [float(width) for width in re.findall(r"width:([\d.]+)%", pair)[:2]]
    assert widths[0] == 0
    assert widths[1] > 0
    assert page.count('class="pale"') == page.count('class="pair"')


def test_curves_of_both_runs_share_one_chart(reading: Reading) -> None:
    for anchor in ("timeline", "loss"):
        assert "before" in section(reading, anchor)
    drawn = {name: reading.all("path", name) for name in ("before", "after")}
    assert [len(paths) for paths in drawn.values()] == [2, 2]  # step time and loss
    first = drawn["before"][0].attributes["d"] or ""
    assert first != drawn["after"][0].attributes["d"]
    lower = [int(y) for _, y in re.findall(r"[ML](\d+) (\d+)", first)]
    upper = [int(y) for _, y in re.findall(r"[ML](\d+) (\d+)", drawn["after"][0].attributes["d"] or "")]
    assert np.median(lower) > np.median(upper)  # slower steps are drawn higher, and 0 is the top


def test_what_differs_is_listed(reading: Reading) -> None:
    assert "torch2.13.02.14.0" in section(reading, "settings")


def test_faster_reads_as_faster(both: tuple[Path, Path]) -> None:
    found = compare(read_run(both[1]), read_run(both[0]), 0.05)
    title = Reading(comparison_to_html(found)).all("h1")[0].text
    assert re.match(r"1\.2\dx faster: a step takes \d\d% less time$", title)


def test_too_short_runs_have_a_page_without_times(tmp_path: Path) -> None:
    short = write_run(tmp_path / "short", steady_rows([0.1] * 6))
    reading = Reading(comparison_to_html(compare(read_run(short), read_run(short), 0.05)))
    assert "Cannot tell" in reading.all("h1")[0].text
    assert (reading.unmatched, reading.open) == ([], [])


def test_hostile_strings_stay_text(comparison: Comparison) -> None:
    before = dataclasses.replace(comparison.before, run_id=HOSTILE, command=HOSTILE)
    difference = SettingDifference(name=HOSTILE, before=HOSTILE, after=HOSTILE)
    page = comparison_to_html(dataclasses.replace(comparison, before=before, differences=[difference], notes=[HOSTILE]))
    assert "<script>alert" not in page
    assert "\x1b" not in page
    assert Reading(page).all("img") == []
