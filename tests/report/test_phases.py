"""The nine colours: one for each phase, readable on paper and under text."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from paceline.record.layout import PHASES
from paceline.report.phases import STYLES, contrast, shown, text_on

CSS = files("paceline.report").joinpath("assets", "report.css").read_text(encoding="utf-8")


def test_every_phase_has_a_style_of_its_own() -> None:
    assert tuple(STYLES) == PHASES
    for theme in ("light", "dark"):
        assert len({getattr(style, theme) for style in STYLES.values()}) == len(PHASES)


def variables(theme: int) -> dict[str, str]:
    """Colours of the light (0) and the dark (1) theme, by name."""
    block = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)[theme]
    return dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", block))


@pytest.mark.parametrize("theme", [0, 1])
@pytest.mark.parametrize("name", ["ink", "quiet", "critical", "warning", "good", "info", "one", "two", "three"])
def test_words_can_be_read(theme: int, name: str) -> None:
    colours = variables(theme)
    assert contrast(colours[name], colours["paper"]) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("phase", PHASES)
def test_phases_can_be_told_from_paper_and_written_on(theme: str, phase: str) -> None:
    colour = getattr(STYLES[phase], theme)
    paper = variables(0 if theme == "light" else 1)["paper"]
    assert contrast(colour, paper) >= 2.4
    assert contrast(colour, text_on(colour)) >= 4.5


def test_contrast_is_that_of_wcag() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


def test_shown_leaves_out_the_small_and_the_unknown() -> None:
    shares = {"forward": 0.5, "backward": 0.019, "other": float("nan")}
    assert [style.name for style, _ in shown(shares)] == ["forward"]
