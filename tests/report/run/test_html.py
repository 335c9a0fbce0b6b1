"""The page: complete without JavaScript, closed to hostile strings, small, and it asks for nothing."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import HealthCheck, given, settings
from tests.report import sample
from tests.report.reading import Reading
from tests.report.strategies import diagnoses

from paceline.explain.model import Diagnosis, HotFunction, SourceLines
from paceline.explain.next_step import NextStep
from paceline.record.layout import PHASES
from paceline.report.phases import STYLES
from paceline.report.run.html import to_html

LIMIT = 1_000_000  # bytes
LOADING = {"src", "href", "srcset", "action", "formaction", "poster", "data", "xlink:href", "background", "ping"}


@pytest.fixture(params=sorted(sample.SCENES))
def page(request: pytest.FixtureRequest) -> str:
    return to_html(sample.SCENES[request.param]())


def test_well_formed(page: str) -> None:
    reading = Reading(page)
    assert (reading.unmatched, reading.open) == ([], [])


def test_asks_for_nothing(page: str) -> None:
    reading = Reading(page)
    loads = [(name, value) for node in reading.nodes for name, value in node.attributes.items() if name in LOADING]
    assert loads == [("href", "data:,")]
    style = "".join(node.text for node in reading.all("style"))
    assert "url(" not in style
    assert "@import" not in style
    assert not re.search(r"fetch\(|XMLHttp|import\(|WebSocket|EventSource|sendBeacon", reading.all("script")[0].text)


def test_policy_forbids_requests_and_foreign_scripts(page: str) -> None:
    policy = Reading(page).all("meta")[1].attributes["content"] or ""
    assert policy.startswith("default-src 'none'")
    assert re.search(r"script-src 'sha256-[\w+/]{43}='$", policy)


def test_small_enough(page: str) -> None:
    assert len(page.encode()) < LIMIT


def test_has_no_script_but_ours_and_no_handlers(page: str) -> None:
    reading = Reading(page)
    assert len(reading.all("script")) == 1
    assert not [name for node in reading.nodes for name in node.attributes if name.startswith("on")]


def test_accessible(page: str) -> None:
    reading = Reading(page)
    assert reading.all("html")[0].attributes["lang"] == "en"
    assert [len(reading.all(tag)) for tag in ("header", "main", "footer", "h1", "title")] == [1] * 5
    assert all(node.attributes.get("aria-label") for node in reading.nodes if node.attributes.get("role") == "img")
    assert all(node.attributes.get("aria-labelledby") for node in reading.all("section"))
    identities = [node.attributes["id"] for node in reading.nodes if "id" in node.attributes]
    assert len(identities) == len(set(identities))


def test_hostile_strings_stay_text() -> None:
    page = to_html(sample.hostile())
    assert "<script>alert" not in page
    assert "\x1b" not in page
    reading = Reading(page)
    assert reading.all("img") == []
    assert reading.text.count("<script>alert(1)</script>") > 15


def test_very_long_strings_are_cut() -> None:
    diagnosis = sample.diagnosis(command="x" * 2_000_000, problems=["y" * 5000] * 5000)
    page = to_html(diagnosis)
    assert len(page.encode()) < LIMIT
    assert "1,998,000 more characters" in page
    assert "4,980 more" in page


def section(reading: Reading, name: str) -> str:
    return next(node.text for node in reading.all("section") if node.attributes["id"] == name)


def test_readable_without_scripts() -> None:
    reading = Reading(to_html(sample.diagnosis()))
    assert "training waits for data 61% of the time" in reading.all("h1")[0].text
    assert "1.55x to 2.10x" in section(reading, "findings")
    assert "paceline explain DATA002" in section(reading, "findings")
    assert "5 min 12 s" in section(reading, "phases")
    assert "augment (train.py:31)" in section(reading, "loader")
    assert "reached at step 830" in section(reading, "loss")
    assert "no NVIDIA driver" in section(reading, "unavailable")
    assert "0.05 USD" in section(reading, "cost")
    toggle = reading.all("div", "toggle")[0]
    assert "hidden" in toggle.attributes  # a button that does nothing is not shown
    assert len(reading.all("path", "curve")) == 1


def test_what_to_do_first_and_the_next_command_stand_at_the_top_and_at_the_end() -> None:
    reading = Reading(to_html(sample.diagnosis(), following=NextStep(text="try it", command="paceline tune train.py")))
    (box,) = reading.all("div", "first")
    assert "Keep the decoded images" in box.text
    assert "exact training computes the same numbers" in box.text
    assert "1.50x to 2.00x expected speed-up" in box.text
    assert "paceline tune train.py" in box.text
    assert "paceline tune train.py" in section(reading, "next")
    button = reading.all("button", "copy")[0]
    assert "hidden" in button.attributes  # a button that does nothing is not shown


def test_source_lines_stand_where_a_finding_names_their_function() -> None:
    lines = ["def augment(image):", "    return image < 3 & image"]
    source = SourceLines(file="/home/me/train.py", marked=31, first=30, lines=lines)
    reading = Reading(to_html(sample.diagnosis(sources={"augment (train.py:31)": source})))
    assert "31    return image < 3 & image" in section(reading, "findings")
    assert {node.text for node in reading.all("mark")} == {"31    return image < 3 & image"}
    assert reading.all("figcaption")[0].attributes["title"] == "/home/me/train.py"


def test_a_source_that_changed_is_said_to_have() -> None:
    source = SourceLines(file="/home/me/train.py", marked=31, first=31, lines=(), changed=True)
    reading = Reading(to_html(sample.diagnosis(sources={"augment (train.py:31)": source})))
    assert "train.py was changed after this run started" in section(reading, "findings")
    assert reading.all("mark") == []


def test_the_step_time_and_the_throughput_say_what_they_are() -> None:
    head = Reading(to_html(sample.diagnosis())).all("header")[0].text
    assert "Step time, median412 ms95% CI 404–421, " in head
    assert "Throughput155 samples/sover the steady steps" in head


def test_the_step_time_is_not_repeated_as_evidence() -> None:
    said = sample.evidence("a step takes 412 ms in the median", sample.diagnosis().step_s.value, "s")
    finding = dataclasses.replace(sample.CPU_BOUND, evidence=(said, *sample.CPU_BOUND.evidence))
    text = section(Reading(to_html(sample.diagnosis(findings=[finding]))), "findings")
    assert "in the median" not in text
    assert "blocked 2.1%" in text


def test_the_ends_of_the_loss_say_how_many_steps_they_are_of() -> None:
    loss = dataclasses.replace(sample.diagnosis().loss, averaged=8)
    text = section(Reading(to_html(sample.diagnosis(loss=loss))), "loss")
    assert "the medians of the first 8 and the last 8 steps" in text


def test_a_single_sample_is_no_table() -> None:
    once = HotFunction(function="main (train.py:9)", share=1.0, count=1)
    rank = dataclasses.replace(sample.diagnosis().ranks[0], host_functions=(once,))
    assert "main (train.py:9)" not in Reading(to_html(sample.diagnosis(ranks=[rank]))).text


def test_every_figure_has_a_unit_or_counts_something() -> None:
    reading = Reading(to_html(sample.straggler()))
    counts = {"2", "6,000"}  # workers, steps
    values = [node.text for node in reading.all("dd") if "class" not in node.attributes]
    assert len(values) > 15
    bare = [value for value in values if not re.search(r"\d ?(%|x|[µmn]?s|h|min|[KMGT]iB|USD|samples/s)", value)]
    assert set(bare) - counts <= {"5", "0–7"}  # numbers of ranks


def test_safety_of_each_remedy_is_shown() -> None:
    reading = Reading(to_html(sample.diagnosis()))
    badges = [node.text for node in reading.all("span", "badge")]
    assert {"exact", "numeric", "semantic", "warning", "info"} <= set(badges)


def test_summary_is_not_said_twice() -> None:
    page = to_html(sample.nan_loss())
    assert Reading(page).text.count("The loss is NaN from step 412 on") == 1


def test_ranks_are_compared() -> None:
    text = section(Reading(to_html(sample.straggler())), "ranks")
    assert "data wait 1.1% (rank 0) to 36% (rank 5)" in text


def test_a_thousand_ranks_show_the_one_that_differs() -> None:
    reading = Reading(to_html(sample.thousand_ranks()))
    text = section(reading, "ranks")
    assert "24 of 1,000 ranks" in text
    assert "gpu-node-1" in text


def test_blamed_rank_comes_first_in_the_time_line() -> None:
    assert "Rank 5:" in section(Reading(to_html(sample.straggler())), "timeline")


def test_a_bad_loss_is_marked() -> None:
    reading = Reading(to_html(sample.nan_loss()))
    assert "not finite from step 412 on" in [node.text for node in reading.all("span", "note")]
    assert len(reading.all("path", "bad")) == 1


def test_without_steps_there_are_no_empty_sections() -> None:
    names = [node.attributes["id"] for node in Reading(to_html(sample.no_steps())).all("section")]
    assert names == ["memory", "unavailable"]


def test_a_crash_is_seen_at_once() -> None:
    ended = Reading(to_html(sample.crashed())).all("b", "ended-badly")
    assert [node.text for node in ended] == ["failed with exit code 1 after 9 min 01 s"]


def test_colours_of_both_themes_are_on_the_page() -> None:
    page = to_html(sample.diagnosis())
    for name in PHASES:
        assert f"--{name}:{STYLES[name].light}" in page
        assert f"--{name}:{STYLES[name].dark}" in page


@given(diagnoses)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_diagnosis_becomes_a_page(diagnosis: Diagnosis) -> None:
    reading = Reading(to_html(diagnosis))
    assert (reading.unmatched, reading.open) == ([], [])
    assert not re.search(r"\b(nan|inf)\b", " ".join(str(node.attributes.get("d")) for node in reading.all("path")))
