"""Are the decision records complete, numbered without gaps, listed, and short?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "decisions"
RECORDS = sorted(path for path in FOLDER.glob("[0-9]*.md") if not path.name.startswith("0000-"))
MOST_LINES = 70
LONGER = {"0038": 130}  # the record of the packages, with a table of figures for each of them
SECTIONS = ("## Context", "## Decision", "## Consequences")


def title(record: Path) -> str:
    return record.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


def test_the_index_lists_each_record_with_its_title():
    listed = re.findall(r"^- \[(.*)\]\((.*)\)$", (FOLDER / "index.md").read_text(encoding="utf-8"), re.M)
    assert listed == [(title(record), record.name) for record in RECORDS]


def test_records_are_numbered_without_gaps():
    """When this fails: give the new record the next number, and correct its title and the index."""
    assert [int(record.name[:4]) for record in RECORDS] == list(range(1, len(RECORDS) + 1))


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.name[:4])
def test_a_record_has_its_number_its_sections_and_one_page(record):
    lines = record.read_text(encoding="utf-8").splitlines()
    assert title(record).startswith(f"{record.name[:4]}: ")
    assert [section for section in SECTIONS if section not in lines] == []
    assert len(lines) <= LONGER.get(record.name[:4], MOST_LINES)


def references() -> list[tuple[str, str]]:
    """Every file and number of a record that code, settings and tests name, with where."""
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *ROOT.glob("*.toml"), ROOT / "mkdocs.yml"]
    named = re.compile(r"[Dd]ecisions?[ /](0\d{3}(?:-[\w-]+\.md)?)")
    return [
        (str(path.relative_to(ROOT)), name)
        for path in files
        for name in named.findall(path.read_text(encoding="utf-8"))
    ]


def test_records_that_code_names_are_there():
    names = {record.name for record in FOLDER.glob("[0-9]*.md")}
    known = names | {name[:4] for name in names}
    assert [(path, name) for path, name in references() if name not in known] == []
    assert len(references()) > 3
