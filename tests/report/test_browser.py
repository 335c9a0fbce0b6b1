"""The page in a real browser: no request, no complaint, and the script does what it says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.report import sample
from tests.report.browser import CHROMIUM, Browser, browser

from paceline.report.run.html import to_html

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as made:
        yield made


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    for name, make in sample.SCENES.items():
        (folder / f"{name}.html").write_text(to_html(make()), encoding="utf-8")
    return folder


@pytest.mark.parametrize("scene", sorted(sample.SCENES))
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (420, True)])
def test_quiet_and_within_the_window(tab: Browser, pages: Path, scene: str, width: int, dark: bool) -> None:
    tab.open(pages / f"{scene}.html", width=width, dark=dark)
    assert tab.value("document.documentElement.className") == "js"
    assert tab.value("document.documentElement.scrollWidth") <= width
    assert tab.value("window.alerted") is None
    assert (tab.requests(), tab.complaints()) == ([], [])


def test_a_foreign_script_would_not_run(tab: Browser, pages: Path, tmp_path: Path) -> None:
    page = tmp_path / "broken.html"
    hole = "<script>document.title = 'owned'</script></body>"
    page.write_text((pages / "healthy.html").read_text("utf-8").replace("</body>", hole), encoding="utf-8")
    tab.open(page)
    assert "owned" not in tab.value("document.title")
    assert len(tab.complaints()) == 1


def test_dark_follows_the_system(tab: Browser, pages: Path) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    tab.open(pages / "healthy.html")
    light = tab.value(paper)
    tab.open(pages / "healthy.html", dark=True)
    assert tab.value(paper) != light


def test_complete_without_scripts(tab: Browser, pages: Path) -> None:
    tab.open(pages / "data_bound.html", script=False)
    assert tab.requests() == []
    tree = tab.call("DOM.getDocument", depth=-1)["root"]
    drawn = tab.call("DOM.querySelectorAll", nodeId=tree["nodeId"], selector=".plot path")["nodeIds"]
    assert len(drawn) > 15


def area(tab: Browser, selector: str) -> tuple[float, float, float, float]:
    find = f"document.querySelector('{selector}')"
    tab.value(f"{find}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    return tuple(tab.value(f"(r => [r.x, r.y, r.width, r.height])({find}.getBoundingClientRect())"))


def test_values_show_under_the_pointer(tab: Browser, pages: Path) -> None:
    tab.open(pages / "data_bound.html")
    x, y, width, height = area(tab, "#timeline .area")
    tab.pointer("mouseMoved", x + width / 2, y + height / 2)
    tip = tab.value("document.querySelector('#timeline .tip').innerText")
    assert "step 6" in tip
    assert "data wait" in tip
    assert "ms" in tip


def test_dragging_zooms_and_a_double_click_goes_back(tab: Browser, pages: Path) -> None:
    tab.open(pages / "data_bound.html")
    x, y, width, height = area(tab, "#timeline .area")
    box = "document.querySelector('#timeline svg').getAttribute('viewBox')"
    labels = "document.querySelector('#timeline .x').innerText"
    whole, all_labels = tab.value(box), tab.value(labels)
    tab.pointer("mousePressed", x + 0.5 * width, y + 20, 1)
    tab.pointer("mouseMoved", x + 0.6 * width, y + 20, 1)
    tab.pointer("mouseReleased", x + 0.6 * width, y + 20, 1)
    left, _, shown, _ = (float(number) for number in tab.value(box).split())
    assert left == pytest.approx(1000, abs=20)
    assert shown == pytest.approx(200, abs=20)
    assert tab.value(labels) != all_labels
    for clicks in (1, 2):
        tab.pointer("mousePressed", x + 0.5 * width, y + 20, clicks)
        tab.pointer("mouseReleased", x + 0.5 * width, y + 20, clicks)
    assert (tab.value(box), tab.value(labels)) == (whole, all_labels)


def test_loss_over_time(tab: Browser, pages: Path) -> None:
    tab.open(pages / "nan_loss.html")
    path = "document.querySelector('.curve').getAttribute('d')"
    labels = "document.querySelector('#loss .x').innerText"
    assert "500" in tab.value(labels)
    before = tab.value(path)
    tab.value("document.querySelectorAll('.toggle button')[1].click()")
    assert "min" in tab.value(labels)
    assert tab.value("document.querySelector('#loss path.bad').style.display") == "none"
    tab.value("document.querySelectorAll('.toggle button')[0].click()")
    first = [float(number) for number in tab.value(path).split("L")[1].split()]
    assert first == pytest.approx([float(number) for number in before.split("L")[1].split()], abs=2)
