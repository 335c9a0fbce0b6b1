"""The page on tuning: what was won and why it can be believed, closed to hostile strings, quiet in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.browser import CHROMIUM, Browser, browser
from tests.report.reading import Node, Reading
from tests.report.run.test_html import LOADING, section
from tests.report.tune import tune_sample

from paceline.report.page.axis import Axis
from paceline.report.page.shell import asset
from paceline.report.tune import rows as tune_rows
from paceline.report.tune.html import to_html
from paceline.report.tune.json import tuned_json
from paceline.report.tune.trials import axis_of, drawing, ticks_of
from paceline.tune.search.result import TuneResult

in_browser = [
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"),
]


def page_of(scene: str) -> str:
    tuned: TuneResult = tune_sample.SCENES[scene]()
    hostile = scene == "hostile"
    return to_html(
        tuned,
        recipe_file=(tune_sample.HOSTILE if hostile else "recipe.toml") if tuned.best else None,
        next_command=tune_sample.HOSTILE if hostile else tune_sample.NEXT,
        diff={"tuned": tune_sample.DIFF, "hostile": f"+{tune_sample.HOSTILE}\n"}.get(scene),
    )


@pytest.fixture(params=sorted(tune_sample.SCENES))
def page(request: pytest.FixtureRequest) -> str:
    return page_of(request.param)


def test_well_formed_and_accessible(page: str) -> None:
    reading = Reading(page)
    assert (reading.unmatched, reading.open) == ([], [])
    assert reading.all("html")[0].attributes["lang"] == "en"
    assert [len(reading.all(tag)) for tag in ("header", "main", "footer", "h1", "title")] == [1] * 5
    assert all(node.attributes.get("aria-label") for node in reading.nodes if node.attributes.get("role") == "img")
    assert all(node.attributes.get("aria-labelledby") for node in reading.all("section"))
    identities = [node.attributes["id"] for node in reading.nodes if "id" in node.attributes]
    assert len(identities) == len(set(identities))


def test_asks_for_nothing_and_runs_nothing(page: str) -> None:
    reading = Reading(page)
    loads = [(name, value) for node in reading.nodes for name, value in node.attributes.items() if name in LOADING]
    assert loads == [("href", "data:,")]
    assert [node.text for node in reading.all("script")] == [asset("copy.js")]
    assert not [name for node in reading.nodes for name in node.attributes if name.startswith("on")]
    style = "".join(node.text for node in reading.all("style"))
    assert "url(" not in style
    assert "@import" not in style
    policy = reading.all("meta")[1].attributes["content"] or ""
    assert policy.startswith("default-src 'none'")
    assert re.search(r"script-src 'sha256-[\w+/]{43}='$", policy)


def test_every_string_of_the_users_stays_text() -> None:
    page = page_of("hostile")
    assert "<script>alert" not in page
    assert "\x1b" not in page
    reading = Reading(page)
    assert reading.all("img") == []
    assert reading.text.count("<script>alert(1)</script>") > 12


def test_headline_speed_up_with_interval_and_count() -> None:
    reading = Reading(page_of("tuned"))
    assert reading.all("h1")[0].text == "The same training, 9.00x faster per step"
    assert "95% CI 4.88–19, 12 pairs of blocks" in reading.all("header")[0].text
    assert "9.00x faster" in reading.all("title")[0].text


@pytest.mark.parametrize(
    ("scene", "said"),
    [
        ("no_win", "No gain was proven: keep the program unchanged"),
        ("unproven", "One change looked 8.20x faster, but that is not proven"),
        ("too_short", "No gain was proven: keep the program unchanged"),
        ("one_kept", "The same training, 7.36x faster per step"),
        ("interrupted", "2 changes kept, each with a proven gain; their combined gain was not measured"),
        ("in_turn", "The same training, 8.83x faster per step"),
        ("for_memory", "The same training, in 1.84x less memory"),
        ("for_money", "Training with another algorithm, 1.62x faster"),
    ],
)
def test_headline_promises_no_more_than_was_found(scene: str, said: str) -> None:
    assert Reading(page_of(scene)).all("h1")[0].text == said


def test_gains_that_were_measured_one_after_the_other_are_said_to_be() -> None:
    assert "95% CI 4.90–16, 4 pairs of blocks; changes measured one after the other" in page_of("in_turn")
    assert "one after the other" not in page_of("tuned")


def test_where_the_program_was_not_watched_again_the_reason_is_told() -> None:
    why = "not measured with the recipe: the time budget of 60 s is spent"
    assert why in page_of("in_turn")
    assert "not measured with" not in page_of("tuned") + page_of("no_win")
    assert tuned_json(tune_sample.SCENES["in_turn"](), None)["unavailable"] == {"after": why}
    assert tuned_json(tune_sample.SCENES["no_win"](), None)["unavailable"] == {"after": "no change was kept"}
    assert tuned_json(tune_sample.SCENES["tuned"](), None)["unavailable"] == {}


def test_before_and_after_are_as_long_as_a_step_takes() -> None:
    reading = Reading(page_of("tuned"))
    widths = [float(re.findall(r"width:([\d.]+)%", page)[0]) for page in re.findall(r"track.{60}", page_of("tuned"))]
    assert widths[0] == 100
    assert widths[1] == pytest.approx(100 / 9.0, abs=0.1)  # as the headline says: 9.00x
    assert "47.5 ms a step" in reading.text
    assert "5.28 ms a step" in reading.text
    assert "data wait 85% → 31%" in reading.text


def test_no_number_of_the_page_contradicts_the_headline() -> None:
    """Step times of single runs (45.1 and 6.7 ms) have another ratio than the pairs behind the headline."""
    text = Reading(page_of("tuned")).text
    assert not re.search(r"45\.1 ms|6\.70 ms|709|4,770", text)
    before, after = (float(x.replace(",", "")) for x in re.findall(r"([\d,.]+) → ([\d,.]+) samples/s", text)[0])
    assert after / before == pytest.approx(9.0, rel=0.01)
    step_s = tuned_json(tune_sample.tuned(), None)["best"]["step_s"]
    assert step_s["baseline"] / step_s["with_recipe"] == pytest.approx(9.0)


def row(reading: Reading, change: str) -> Node:
    return next(node for node in reading.all("tr") if change in node.text)


def test_each_trial_shows_what_it_changed_what_was_expected_and_what_came_out() -> None:
    reading = Reading(page_of("tuned"))
    first = row(reading, "loader.num_workers=14")
    for part in ("exact", "3.10x to 6.60x", "by findings 2.40x to 5.80x", "7.36x", "95% CI 4.38–13, 4 pairs"):
        assert part in first.text
    assert "more than expected" in first.text
    assert "4 of 4 checks passed" in first.text
    second = row(reading, "loader.num_workers=28")
    assert "persistent_workers" not in second.text  # that was kept before
    assert "by findings" not in second.text  # nothing was corrected
    assert "3 pairs discarded" in second.text


def test_why_not_is_said_of_each() -> None:
    reading = Reading(page_of("tuned"))
    assert "the gain is certainly below 2%" in row(reading, "loader.prefetch_factor=8").text
    assert "the inputs differ from forward pass" in row(reading, "loader.threads=8").text
    assert "needs a C compiler" in row(reading, "compute.compile").text
    assert "needs --allow semantic" in row(reading, "batch.size").text


def test_recipe_patch_and_next_command_can_be_copied() -> None:
    reading = Reading(page_of("tuned"))
    blocks = [node.text for node in reading.all("pre")]
    assert "[loader]\nnum_workers = 28\npersistent_workers = true\n" in blocks
    assert tune_sample.DIFF.expandtabs(4) in blocks
    assert blocks.count(tune_sample.NEXT) == 2  # at the top and at the end
    assert [len(reading.all("span", name)) for name in ("added", "removed", "place")] == [2, 1, 1]


def test_without_a_win_there_is_no_recipe_and_no_patch() -> None:
    names = [node.attributes["id"] for node in Reading(page_of("no_win")).all("section")]
    assert names == ["trials", "not-tried", "method", "next"]


def test_a_very_long_patch_is_cut() -> None:
    tuned = tune_sample.tuned()
    page = to_html(tuned, recipe_file=None, next_command="", diff="+" + "x" * 3000 + "\n+x" * 20_000)
    assert len(page.encode()) < 1_000_000
    assert "17,001 more lines" in page


def test_how_it_was_measured() -> None:
    text = section(Reading(page_of("tuned")), "method")
    for part in (
        "84 pairs",
        "3 discarded",
        "2.1%",
        "4 min 17 s",
        "corrected with the results of earlier trials on this machine",
    ):
        assert part in text
    assert "Of 4 measured speed-ups with an expected interval, 3 are within it." in text
    unsure = tune_sample.trial(
        9, "a", {}, predicted=tune_sample.gain(1.1, 2.0), speedup=tune_sample.factor(1.4, 0.7, 3)
    )
    page = to_html(tune_sample.tuned(trials=(*tune_sample.TRIALS, unsure)), recipe_file=None, next_command="")
    said = "Of 5 measured speed-ups with an expected interval, 3 are within it; for 1, the measurement is too uncertain"
    assert said in page


def test_memory_is_compared_where_that_is_the_goal() -> None:
    first = row(Reading(page_of("for_memory")), "checkpoint_every=2")
    assert "1.84x" in first.text
    assert "speed 0.78x (95% CI 0.76–0.80, 24 pairs)" in first.text
    assert "0.70x" not in first.text  # a speed that was expected is no memory


def test_sizes_of_batch_time_to_a_loss_and_money() -> None:
    reading = Reading(page_of("for_money"))
    batch = section(reading, "batch")
    for part in ("154 samples", "52.0 ms", "2.7", "needs more memory than there is"):
        assert part in batch
    assert "the same loss is reached 1.58x" in section(reading, "recipe")
    assert "USD" in reading.all("header")[0].text


# -- the drawing -----------------------------------------------------------------------------------------


def places(markup: str, class_: str) -> tuple[float, float]:
    found = re.search(rf'class="{class_}" style="left:([\d.]+)%(?:;width:([\d.]+)%)?"', markup)
    assert found is not None
    return float(found[1]), float(found[2] or 0)


def test_marks_lie_where_their_values_are() -> None:
    made = tune_rows.rows(tune_sample.tuned())
    axis = Axis(low=0.5, high=32.0, unit="x", log=True)  # six doublings
    markup = drawing(made[0], axis)
    assert places(markup, "even")[0] == pytest.approx(100 / 6, abs=0.01)
    left, width = places(markup, "reach")
    assert left == pytest.approx(100 * axis.fraction(4.38), abs=0.01)
    assert left + width == pytest.approx(100 * axis.fraction(13.44), abs=0.02)
    assert left < places(markup, "dot")[0] < left + width


@given(st.floats(min_value=0.25, max_value=0.95), st.floats(min_value=1.2, max_value=64))
def test_no_gain_is_named_and_no_two_ticks_touch(low: float, high: float) -> None:
    axis = Axis(low=low / 1.05, high=high * 1.05, unit="x", log=True)
    ticks = sorted(ticks_of(axis))
    at = [axis.fraction(tick) for tick in ticks]
    assert all(b - a > 0.12 for a, b in zip(at, at[1:], strict=False))
    assert 1.0 in ticks or not 0.05 <= axis.fraction(1.0) <= 0.95


def test_values_far_out_do_not_stretch_the_axis() -> None:
    axis = axis_of(tune_rows.rows(tune_sample.far_out()))
    assert axis.low > 0.2
    assert axis.high < 70


# -- in a browser ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as made:
        yield made


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    for scene in tune_sample.SCENES:
        (folder / f"{scene}.html").write_text(page_of(scene), encoding="utf-8")
    return folder


class TestInBrowser:
    pytestmark = in_browser

    @pytest.mark.parametrize("scene", sorted(tune_sample.SCENES))
    @pytest.mark.parametrize(("width", "dark"), [(1200, False), (800, False), (390, True)])
    def test_quiet_and_within_the_window(self, tab: Browser, pages: Path, scene: str, width: int, dark: bool) -> None:
        tab.open(pages / f"{scene}.html", width=width, dark=dark)
        assert tab.value("document.documentElement.scrollWidth") <= width
        assert (tab.requests(), tab.complaints()) == ([], [])

    @pytest.mark.parametrize("width", [1200, 800, 390])
    def test_marks_stay_in_their_cells_and_ticks_stand_over_them(self, tab: Browser, pages: Path, width: int) -> None:
        tab.open(pages / "tuned.html", width=width)
        inside = """[...document.querySelectorAll('.drawn')].every((cell) => {
            const box = cell.getBoundingClientRect();
            return box.width > 100 && box.height > 20 && [...cell.children].every((mark) => {
                const own = mark.getBoundingClientRect();
                return own.left >= box.left - 7 && own.right <= box.right + 7 && own.bottom <= box.bottom + 1;
            });
        })"""
        assert tab.value(inside) is True
        if width > 1000:  # below, rows are stacked and have no heads
            line = "document.querySelector('.drawn .even').getBoundingClientRect().x"
            tick = "(b => b.x + b.width / 2)([...document.querySelectorAll('.ticks span')]"
            tick += ".find((span) => span.innerText === '1x').getBoundingClientRect())"
            assert tab.value(line) == pytest.approx(tab.value(tick), abs=1.5)

    def test_dark_follows_the_system(self, tab: Browser, pages: Path) -> None:
        paper = "getComputedStyle(document.body).backgroundColor"
        tab.open(pages / "tuned.html")
        light = tab.value(paper)
        tab.open(pages / "tuned.html", dark=True)
        assert tab.value(paper) != light


def test_what_looked_best_is_shown_as_not_proven_and_is_no_recipe() -> None:
    page = to_html(tune_sample.unproven(), recipe_file="unproven.toml", next_command="paceline tune train.py")
    assert "What looked fastest" in page and "num_workers = 2" in page and "not proven" in page
    made = tuned_json(tune_sample.unproven(), "unproven.toml")
    assert (made["recipe_file"], made["unproven"]["recipe_file"]) == (None, "unproven.toml")
