"""No text of any page is cut off or printed over other text: on a wide screen, on a narrow one and on paper."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.explain.written_run import steady_rows, write_run
from tests.report import sample
from tests.report.browser import CHROMIUM, Browser, browser
from tests.report.layout import cut_off, faults, overprinted
from tests.report.plan.test_html import advice_of, offers_page
from tests.report.trace.test_html import read
from tests.report.tune import tune_sample

from paceline.explain.compare import compare
from paceline.explain.diagnose import findings_in
from paceline.explain.model import Diagnosis, SourceLines
from paceline.explain.next_step import NextStep
from paceline.record.read import read_run
from paceline.report.compare import html as compare_html
from paceline.report.page.next_step import Then
from paceline.report.plan import html as plan_html
from paceline.report.run import html
from paceline.report.trace import html as trace_html
from paceline.report.tune import html as tune_html
from paceline.traces.analyze.timeline import timeline_data_of

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"),
]
MIB = 2.0**20
COMMAND = "paceline tune --budget 20m --allow semantic train.py --config configs/imagenet/resnet50-pretrained.yaml"
FOLLOWING = NextStep(text="try the proposed changes and keep those that help", command=COMMAND)
LINES = SourceLines(
    file="/home/me/train.py",
    marked=31,
    first=30,
    lines=["def augment(image):", "    " + "return rotated(image, degrees=random.uniform(-15.0, 15.0)) " * 3],
)


def with_source(diagnosis: Diagnosis) -> Diagnosis:
    return dataclasses.replace(diagnosis, sources={"augment (train.py:31)": LINES})


def run_page(scene: str) -> str:
    return html.to_html(with_source(sample.SCENES[scene]()), following=FOLLOWING)


def fast_network_page() -> str:
    """A page whose axes have the longest labels of bytes per second: 500 MiB/s."""
    network = [sample.gauge(name, "bytes/s", 600 * MIB, None) for name in ("net_received", "net_sent")]
    return html.to_html(dataclasses.replace(sample.SCENES["data_bound"](), gauges=network), following=FOLLOWING)


def compare_page(place: Path) -> str:
    waits = {"data_wait": [0.0101] * 120}
    before = write_run(place / "20261121-031500-train-3fa2", steady_rows([0.0412] * 120))
    after = write_run(place / "20261121-031600-train-93cc", steady_rows([0.0513] * 120, waits), torch="2.14.0")
    return compare_html.comparison_to_html(compare(read_run(before), read_run(after), 0.05), next_command=COMMAND)


def trace_page(scene: str) -> str:
    traces = read(scene)
    before = read("copies") if scene == "images" else None
    return trace_html.to_html(traces, findings_in(traces), timeline_data_of(traces), before, next_command=COMMAND)


def tune_page(scene: str) -> str:
    tuned = tune_sample.SCENES[scene]()
    return tune_html.to_html(
        tuned, recipe_file="recipe.toml" if tuned.best else None, next_command=COMMAND, diff=tune_sample.DIFF
    )


def plan_page() -> str:
    advice = advice_of("llama-3-70b", "8xp5.48xlarge", tokens=1e12)
    return plan_html.to_html(advice, then=Then(what="Write the plan as a recipe", command=COMMAND))


PAGES = {
    **{
        f"run-{name}": (lambda name=name: run_page(name)) for name in ("data_bound", "straggler", "nan_loss", "crashed")
    },
    **{f"tune-{name}": (lambda name=name: tune_page(name)) for name in ("tuned", "no_win", "for_money")},
    **{f"trace-{name}": (lambda name=name: trace_page(name)) for name in ("eight", "images")},
    "run-fast_network": fast_network_page,
    "plan": plan_page,
    "offers": offers_page,
}


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as made:
        yield made


@pytest.mark.parametrize("name", sorted(PAGES))
def test_nothing_is_cut_or_overprinted(tab: Browser, tmp_path: Path, name: str) -> None:
    page = tmp_path / "page.html"
    page.write_text(PAGES[name](), encoding="utf-8")
    assert faults(tab, page) == {}


def test_nothing_is_cut_or_overprinted_in_a_comparison(tab: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(compare_page(tmp_path), encoding="utf-8")
    assert faults(tab, page) == {}


def test_the_measure_sees_a_fault(tab: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        "<p style='margin:0'>below</p><p style='margin:-12px 0 0'>above</p><p>beside</p>"
        "<div style='width:40px;overflow:hidden;white-space:nowrap'>a text that is too long</div>"
    )
    tab.open(page)
    assert overprinted(tab) == ["below | above"]
    assert cut_off(tab) == ["a text that is too long"]


@pytest.mark.parametrize("name", ["run-data_bound", "tune-tuned", "trace-eight", "plan"])
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (480, 900)])
def test_what_to_do_first_is_seen_without_scrolling(
    tab: Browser, tmp_path: Path, name: str, width: int, height: int
) -> None:
    page = tmp_path / "page.html"
    page.write_text(PAGES[name](), encoding="utf-8")
    tab.open(page, width=width)
    assert tab.value("document.querySelector('.first .typed').getBoundingClientRect().bottom") < height


def test_a_button_copies_the_command(tab: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(run_page("data_bound"), encoding="utf-8")
    tab.open(page)
    tab.value("document.addEventListener('copy', () => { window.copied = String(getSelection()); })")
    tab.value("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    tab.value("document.querySelector('button.copy').click()")
    assert tab.value("window.copied") == COMMAND
    assert tab.value("document.querySelector('button.copy').textContent") == "Copied"
    assert (tab.requests(), tab.complaints()) == ([], [])


def test_without_a_clipboard_the_command_is_selected(tab: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(run_page("data_bound"), encoding="utf-8")
    tab.open(page)
    tab.value("navigator.clipboard.writeText = async () => { throw new Error('refused'); }")
    tab.value("document.querySelector('button.copy').click()")
    assert tab.value("String(getSelection())").replace("\n", " ") == COMMAND


def test_without_scripts_the_command_stands_and_no_dead_button_shows(tab: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(run_page("data_bound"), encoding="utf-8")
    tab.open(page, script=False)
    shown = "[...document.querySelectorAll('button.copy')].filter((one) => one.checkVisibility()).length"
    tab.call("Emulation.setScriptExecutionDisabled", value=False)
    assert tab.value(shown) == 0
    assert tab.value("document.querySelector('.first code').textContent") == COMMAND
