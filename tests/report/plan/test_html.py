"""The page on a plan: what it shows, closed to hostile strings, quiet in a real browser at any width."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from tests.report.browser import CHROMIUM, Browser, browser
from tests.report.reading import Reading
from tests.report.run.test_html import LOADING, section
from tests.report.sample import HOSTILE

from paceline.core.units import seconds, size
from paceline.plan.cost.constants import fitted
from paceline.plan.cost.machines import parse_machines
from paceline.plan.models.lookup import published_transformer
from paceline.plan.search.advice import Advice, Target, advise
from paceline.plan.search.offers import OfferLimits, find_offers
from paceline.plan.search.wish import Wish
from paceline.report.page.shell import asset
from paceline.report.plan.html import offers_to_html, to_html

TODAY = date(2026, 11, 22)


def advice_of(name: str, spec: str, *, tokens: float | None = None, **more: object) -> Advice:
    model, rented = published_transformer(name), parse_machines(spec, None, None)
    assert model is not None
    wish = Wish(model=model, cluster=rented.cluster, **{"global_batch": 512, **more})
    return advise(wish, rented, Target(tokens=tokens, today=TODAY), fitted())


def offers_page() -> str:
    model = published_transformer("llama-3-8b")
    assert model is not None
    wish = Wish(model=model, cluster=parse_machines("8xH100-SXM", None, None).cluster, global_batch=512)
    found = find_offers(wish, 1000, OfferLimits(region="us-east-1", nodes=(1, 4)), fitted())
    return offers_to_html(wish, found, 1000, TODAY)


@pytest.fixture(scope="module")
def pipeline() -> Advice:
    return advice_of("llama-3-70b", "8xp5.48xlarge", tokens=1e12)


@pytest.fixture(scope="module")
def pages(pipeline: Advice) -> dict[str, str]:
    bad = advice_of("llama-3-8b", "8xH100-SXM")
    bad = replace(bad, wish=replace(bad.wish, model=replace(bad.wish.model, name=HOSTILE)))
    return {
        "pipeline": to_html(pipeline),
        "too_large": to_html(advice_of("llama-3-70b", "2xA100-80GB-SXM")),
        "hostile": to_html(bad),
        "offers": offers_page(),
    }


SCENES = ("pipeline", "too_large", "hostile", "offers")


@pytest.mark.parametrize("scene", SCENES)
def test_well_formed_asks_for_nothing_and_runs_nothing(pages: dict[str, str], scene: str) -> None:
    reading = Reading(pages[scene])
    assert (reading.unmatched, reading.open) == ([], [])
    assert [len(reading.all(tag)) for tag in ("header", "main", "footer", "h1", "title")] == [1] * 5
    assert all(node.attributes.get("aria-label") for node in reading.nodes if node.attributes.get("role") == "img")
    identities = [node.attributes["id"] for node in reading.nodes if "id" in node.attributes]
    assert len(identities) == len(set(identities))
    loads = [(name, value) for node in reading.nodes for name, value in node.attributes.items() if name in LOADING]
    assert loads == [("href", "data:,")]
    assert [node.text for node in reading.all("script")] == [asset("copy.js")]
    assert "url(" not in "".join(node.text for node in reading.all("style"))
    assert len(pages[scene].encode()) < 200_000


def test_a_hostile_name_stays_text(pages: dict[str, str]) -> None:
    assert "<script>alert" not in pages["hostile"]
    assert "<script>alert" in Reading(pages["hostile"]).all("h1")[0].text


def test_the_head_has_layout_time_memory_and_money_with_intervals(pages: dict[str, str], pipeline: Advice) -> None:
    best, reading = pipeline.best, Reading(pages["pipeline"])
    assert best is not None
    head = reading.all("header")[0].text
    assert str(best.case.layout).replace(",", ", ") in head
    assert seconds(best.step_s) in head
    for end in (best.step_s / (1 + pipeline.spread), best.step_s * (1 + pipeline.spread)):
        assert seconds(end) in head
    assert f"fits with probability {best.fits:.2f}" in head
    assert "2026-07-20" not in head
    assert "2026-07-20" in section(reading, "cost")  # where the price is from, said once
    question = section(reading, "question")
    assert "70.6 billion weights" in question
    assert "64 x H100-SXM" in question


def test_the_bars_add_up_and_every_part_is_listed(pages: dict[str, str], pipeline: Advice) -> None:
    best = pipeline.best
    assert best is not None
    for name, parts in (("time", best.step_parts), ("memory", best.memory_parts)):
        drawn = pages["pipeline"].split(f'id="{name}"')[1].split("</section>")[0]
        grows = [float(share) for share in re.findall(r"flex-grow:([\d.]+)", drawn)]
        assert sum(grows) == pytest.approx(1.0, abs=0.01)
        shown = section(Reading(pages["pipeline"]), name)
        show = seconds if name == "time" else size
        assert all(show(value) in shown for value in parts.values() if value > 0.01 * sum(parts.values()))


def test_the_pipeline_is_drawn_rank_by_rank(pages: dict[str, str], pipeline: Advice) -> None:
    best = pipeline.best
    assert best is not None
    assert best.stages is not None
    shown = section(Reading(pages["pipeline"]), "stages")
    assert f"rank {best.case.layout.pp - 1}" in shown
    assert best.case.training.schedule in shown
    assert all(size(held) in shown for held in best.stages.memory_bytes)


def test_front_scaling_and_reasons_are_there(pages: dict[str, str], pipeline: Advice) -> None:
    reading = Reading(pages["pipeline"])
    front = section(reading, "front")
    assert all(str(plan.case.layout) in front for plan in pipeline.found.plans[:12])
    assert all(f"{each.plan.tokens_per_s:,.0f}" in section(reading, "scaling") for each in pipeline.scaling)
    rejected = section(reading, "rejected")
    assert all(why in rejected and f"{count:,}" in rejected for why, count in pipeline.found.rejected.items())
    assert "spot" in section(reading, "cost")


def test_what_fits_nowhere_shows_the_nearest_and_no_money(pages: dict[str, str]) -> None:
    reading = Reading(pages["too_large"])
    assert "does not fit" in reading.all("h1")[0].text
    assert "needs at least" in reading.all("header")[0].text
    assert {"cost", "scaling", "front"}.isdisjoint(node.attributes["id"] for node in reading.all("section"))


def test_offers_are_listed_with_where_their_prices_are_from(pages: dict[str, str]) -> None:
    shown = section(Reading(pages["offers"]), "offers")
    assert "us-east-1" in shown
    assert "Prices: " in shown
    assert "days old" in shown


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as made:
        yield made


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium")
def test_quiet_and_within_the_window(tab: Browser, pages: dict[str, str], tmp_path: Path) -> None:
    for scene, page in pages.items():
        path = tmp_path / f"{scene}.html"
        path.write_text(page, encoding="utf-8")
        for width, dark in ((1200, False), (420, True)):
            tab.open(path, width=width, dark=dark)
            assert tab.value("document.documentElement.scrollWidth") <= width, scene
            assert tab.value("window.alerted") is None
            assert (tab.requests(), tab.complaints()) == ([], [])
