"""Every remedy has its file, its settings and its page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paceline.core.recipe import SETTINGS
from paceline.tune import remedies
from paceline.tune.pages import files, write_pages
from paceline.tune.remedies import all_remedies

DOCS = Path(__file__).parents[2] / "docs" / "remedies"
HEADINGS = ["Safety class", "What it sets", "How it is confirmed", "In the source"]
every_remedy = pytest.mark.parametrize("remedy", all_remedies(), ids=lambda remedy: remedy.id)


def test_every_file_holds_a_remedy_of_its_name():
    files = {path.stem for path in Path(remedies.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == {remedy.id.replace(".", "_") for remedy in all_remedies()}


@every_remedy
def test_a_page_says_how_safe_it_is_what_it_sets_how_it_is_confirmed_and_how_the_source_does_it(remedy):
    assert re.findall(r"^## (.+)$", remedy.page, flags=re.MULTILINE) == HEADINGS
    sets = remedy.page.partition("## What it sets")[2].partition("##")[0]
    named = re.findall(r"`([a-z]+\.[a-z_0-9]+)", sets)
    assert set(remedy.info.settings) <= set(named) <= set(SETTINGS)


def test_the_pages_on_disk_are_those_of_the_remedies():
    """When this fails: python -m paceline.tune.pages docs/remedies."""
    assert {path.name: path.read_text(encoding="utf-8") for path in DOCS.glob("*.md")} == files()


def test_pages_of_remedies_that_are_no_more_are_removed(tmp_path):
    (tmp_path / "old.md").write_text("gone")
    write_pages(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(files())
