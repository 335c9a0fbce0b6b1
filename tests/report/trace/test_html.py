"""The page on captures: what stands on it, and in a browser that its time line is drawn, zoomed and searched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.report.browser import CHROMIUM, Browser, browser
from tests.report.reading import Reading
from tests.traces.making import captured, gpu, host, launch

from paceline.explain.diagnose import findings_in
from paceline.report.trace.html import to_html
from paceline.report.trace.markdown import to_markdown
from paceline.traces.analyze.ranks import TraceOptions, read_all
from paceline.traces.analyze.timeline import pack_timelines, rank_timeline, timeline_data_of
from paceline.traces.capture import COMPUTE, Capture, GpuEvents, HostActivity, Launches
from paceline.traces.read.files import files_in

CAPTURES = Path(__file__).parents[2] / "traces" / "captures"
SCENES = {"eight": "dlrm8_*", "host-bound": "b200_eager*", "copies": "diff_test*", "images": "resnet50*"}
in_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")


def read(scene: str):
    files = files_in(sorted(CAPTURES.glob(SCENES[scene])))
    return read_all(files, TraceOptions(launchers=True, path=True), 1)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    for scene in SCENES:
        traces = read(scene)
        before = read("copies") if scene == "images" else None
        (folder / f"{scene}.html").write_text(to_html(traces, findings_in(traces), timeline_data_of(traces), before))
    return folder


def sections(page: Path) -> list[str]:
    return [node.attributes["id"] for node in Reading(page.read_text()).all("section")]


def test_sections_are_those_that_the_captures_have(pages: Path) -> None:
    both = ["ranks", "path", "kernels", "launchers"]
    assert sections(pages / "eight.html") == ["findings", "timeline", *both, "collectives", "next"]
    assert "against" in sections(pages / "images.html")


def test_what_is_said(pages: Path) -> None:
    text = (pages / "eight.html").read_text()
    assert "Rank 7 arrives last in 5 of 8 collectives" in text
    assert text.count('class="stacked') >= 9  # the mean, and a bar for each rank
    assert "multimem_all_reduce_kernel&lt;" in (pages / "host-bound.html").read_text()


def test_names_are_text(tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)></script><b>"
    captured(tmp_path, launch(0, 1), gpu(4, 10, 1, evil), host(evil, 0, 3))
    traces = read_all([tmp_path / "made.json"], TraceOptions(launchers=True, path=True), 1)
    page = to_html(traces, findings_in(traces), timeline_data_of(traces))
    assert "<img" not in page
    assert page.count("</script>") == 2  # the data's and the script's
    assert "<img" not in to_markdown(traces, findings_in(traces))


def test_long_names_open_on_a_click_and_are_whole(tmp_path: Path) -> None:
    name = "void at::native::elementwise_kernel<" + "int, " * 200 + "float>(T)"
    captured(tmp_path, launch(0, 1), gpu(4, 10, 1, name))
    traces = read_all([tmp_path / "made.json"], TraceOptions(path=True), 1)
    page = to_html(traces, findings_in(traces), timeline_data_of(traces))
    whole = name.replace("<", "&lt;").replace(">", "&gt;")
    assert page.count(f"</summary><code>{whole}</code></details>") >= 2  # of the kernels, and of the path


def test_without_gpu_events_there_is_no_picture(tmp_path: Path) -> None:
    captured(tmp_path, host("aten::mm", 0, 3))
    traces = read_all([tmp_path / "made.json"], TraceOptions(launchers=True, path=True), 1)
    page = tmp_path / "page.html"
    page.write_text(to_html(traces, findings_in(traces), timeline_data_of(traces)))
    assert sections(page) == ["ranks", "launchers"]
    assert "CPU time" in page.read_text()
    assert "no verdict" in page.read_text()
    assert "no verdict" in to_markdown(traces, findings_in(traces))


def test_markdown_has_the_same_figures() -> None:
    traces = read("eight")
    text = to_markdown(traces, findings_in(traces))
    assert re.search(r"\| *0 *\|.*\| *261 *\| *13\.0 ms *\| *49% *\|", text)
    assert "rank 7 is last in 5 of 8" in text
    assert all(line.count("|") >= 5 for line in text.splitlines() if line.startswith("|"))


def test_packed_pictures_hold_every_event_to_the_nanosecond() -> None:
    traces = read("eight")
    made = timeline_data_of(traces).packed
    assert [title for title, _ in made.ranks] == [f"rank {rank}" for rank in range(8)]
    on_gpu = sum(count for _, lanes in made.ranks for _, kind, count in lanes if kind == "gpu")
    assert on_gpu == sum(rank.breakdown.events for rank in traces.ranks)
    assert made.unit_ns == 1


def many_events(count: int) -> Capture:
    starts = np.arange(count, dtype=np.int64) * 2_000
    none = np.empty(0, np.int64)
    return Capture(
        source="made", rank=0, world=1, gpu=None, device=0,
        events=GpuEvents(
            start_ns=starts, end_ns=starts + 1_500, class_=np.full(count, COMPUTE, np.uint8),
            name=(np.arange(count) % 7).astype(np.int32), stream=np.full(count, 7), correlation=np.full(count, -1),
            names=[f"kernel_{place}" for place in range(7)],
        ),
        launches=Launches(start_ns=none, end_ns=none, correlation=none), steps=[], host=HostActivity(),
    )  # fmt: skip


# -- in a browser ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as made:
        yield made


STREAM = "document.querySelector('.lane:not(.host) canvas')"
PAINTED = """[...document.querySelectorAll('#lanes canvas')].map((canvas) => {
    const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    let count = 0;
    for (let i = 3; i < data.length; i += 4) count += data[i] > 0;
    return count / (data.length / 4);
})"""


def settled(tab: Browser) -> None:
    """Wait until what was asked for is drawn; the picture begins after the page has loaded."""
    tab.call(
        "Runtime.evaluate",
        expression="new Promise((done) => { const look = () => document.documentElement.classList.contains('js')"
        " ? requestAnimationFrame(() => requestAnimationFrame(done)) : setTimeout(look, 20); look(); })",
        awaitPromise=True,
    )


def looked_for(tab: Browser, name: str) -> None:
    field = "document.getElementById('find')"
    tab.value(f"{field}.value = '{name}'; {field}.dispatchEvent(new Event('input'))")


@in_browser
class TestInBrowser:
    @pytest.mark.parametrize("scene", sorted(SCENES))
    @pytest.mark.parametrize(("width", "dark"), [(1200, False), (390, True)])
    def test_quiet_and_within_the_window(self, tab: Browser, pages: Path, scene: str, width: int, dark: bool) -> None:
        tab.open(pages / f"{scene}.html", width=width, dark=dark)
        settled(tab)
        assert tab.value("document.documentElement.scrollWidth") <= width
        assert (tab.requests(), tab.complaints()) == ([], [])

    def test_without_a_script_strips_show_how_busy_lanes_were(self, tab: Browser, pages: Path) -> None:
        tab.open(pages / "eight.html", script=False)
        tab.call("Emulation.setScriptExecutionDisabled", value=False)
        assert tab.value("document.querySelectorAll('#lanes svg path').length") >= 16
        assert tab.value("getComputedStyle(document.querySelector('.tools')).display") == "none"

    def test_lanes_are_painted_and_a_zoom_shows_less(self, tab: Browser, pages: Path) -> None:
        tab.open(pages / "copies.html")
        settled(tab)
        assert max(tab.value(PAINTED)) > 0.5
        ruler = "document.querySelector('.ruler .x').innerText"
        before = tab.value(ruler)
        tab.value("document.querySelector('[data-zoom=in]').click()")
        settled(tab)
        assert tab.value(ruler) != before
        tab.value("document.querySelector('[data-zoom=all]').click()")
        settled(tab)
        assert tab.value(ruler) == before

    def test_what_is_under_the_pointer_is_named(self, tab: Browser, pages: Path) -> None:
        tab.open(pages / "copies.html")
        settled(tab)
        tab.value(f"{STREAM}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        settled(tab)
        place = tab.value(f"(b => [b.x + b.width / 2, b.y + 5])({STREAM}.getBoundingClientRect())")
        tab.pointer("mouseMoved", *place)
        tip = tab.value("document.querySelector('#lanes .tip').innerText")
        assert "stream" in tip
        assert "from" in tip

    def test_a_kernel_is_found_by_its_name(self, tab: Browser, pages: Path) -> None:
        tab.open(pages / "eight.html")
        settled(tab)
        looked_for(tab, "nccl")
        assert re.match(r"64 events, [\d.]+ ms in all", tab.value("document.getElementById('found').textContent"))

    def test_a_million_events(self, tab: Browser, tmp_path: Path) -> None:
        """They are there, all of them, and a redraw goes with the width of the page."""
        capture = many_events(1_000_000)
        page = tmp_path / "million.html"
        page.write_text(page_of(capture))
        assert page.stat().st_size < 20_000_000
        tab.open(page)
        settled(tab)
        looked_for(tab, "kernel_3")
        assert tab.value("document.getElementById('found').textContent").startswith("142,857 events")
        assert max(tab.value(PAINTED)) > 0.9
        assert (tab.requests(), tab.complaints()) == ([], [])


def page_of(capture: Capture) -> str:
    """Return a page with the picture of a capture alone."""
    from paceline.report.page.shell import asset, document
    from paceline.report.trace.timeline import timeline
    from paceline.traces.analyze.timeline import TimelineData

    made = pack_timelines([rank_timeline(capture, capture.events, "rank 0")])
    drawn = timeline(TimelineData(packed=made, left_out=0))
    return document("a million events", drawn, style=asset("trace.css"), script=asset("trace.js"))
