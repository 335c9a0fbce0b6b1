"""Does `paceline explain` print every page, and say which findings this version cannot make?"""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from paceline.cli import group
from paceline.core.errors import UsageError
from paceline.core.remedies import REMEDIES
from paceline.explain.pages import TABLE, all_pages, files, markdown, without_links, write_pages
from paceline.explain.rules import all_rules

DOCS = Path(__file__).parents[2] / "docs" / "findings"


def explain(*arguments: str) -> str:
    result = CliRunner().invoke(group, ["explain", *arguments], prog_name="paceline")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.code)
def test_every_rule_has_a_page(rule) -> None:
    text = explain(rule.code)
    assert text.startswith(f"# {rule.code} {rule.name}\n")
    for part in ("## What it means", "## How it is detected"):
        assert part in text
    assert without_links(rule.page.strip()) in text
    assert "](../" not in text  # links are for the files in docs/


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.code)
def test_rules_are_those_of_the_table(rule) -> None:
    assert TABLE[rule.code][0] == rule.name


@pytest.mark.parametrize("name", ["data001", "DATA001", "loader-serial", "Loader_Serial", " DATA001 "])
def test_code_or_name_in_any_case(name: str) -> None:
    assert explain(name).startswith("# DATA001 loader-serial")


@pytest.mark.parametrize("remedy", REMEDIES)
def test_every_remedy_has_a_page(remedy: str) -> None:
    text = explain(remedy)
    assert text.startswith(f"# {remedy}\n\n{REMEDIES[remedy].title}.")
    for name in (*REMEDIES[remedy].classes, *REMEDIES[remedy].settings):
        assert f"`{name}`" in text


def test_a_finding_lists_its_remedies_and_a_remedy_the_findings_that_name_it() -> None:
    text = explain("DATA006")
    assert "| loader.persistent | exact, resampled, semantic | Keep loader workers between epochs |" in text
    assert "`paceline explain loader.persistent`" in text
    assert "- DATA006 loader-restart" in explain("loader.persistent")
    assert "](" not in text.partition("## Remedies")[2]  # links are for the files in docs/
    assert "(docs/how-to/data.md)" in explain("loader.shards")
    assert "The page docs/reference/devices.md lists the hardware" in explain("GPU001")
    assert all("](../" not in explain(remedy) for remedy in REMEDIES)


def test_classes_of_the_remedies_are_explained_and_no_others() -> None:
    text = explain("loader.persistent").partition("## Safety classes")[2]
    assert "*exact*" in text
    assert "*resampled*" in text
    assert "*numeric*" not in text


@pytest.mark.parametrize("name", ["LOADER.WORKERS", "loader.pin-memory", " loader.workers "])
def test_remedies_in_any_case(name: str) -> None:
    assert explain(name).startswith("# loader.")


def test_list_has_every_remedy_with_its_classes() -> None:
    text = explain()
    for row in REMEDIES.values():
        assert f"  {row.id} " in text
        assert f"{row.title} ({', '.join(row.classes)})" in text


def test_list_has_every_finding_once() -> None:
    text = explain()
    for code, (name, when) in TABLE.items():
        assert text.count(f"{code} ") == 1
        assert name in text
        assert when in text


@pytest.mark.parametrize("columns", [60, 100])
def test_the_list_fits_a_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    group.main(["explain"], prog_name="paceline", standalone_mode=False)
    lines = click.unstyle(capsys.readouterr().out).splitlines()
    assert max(map(len, lines[:-1])) <= columns
    assert any(line.endswith("(semantic)") for line in lines)


def test_what_no_rule_decides_is_said() -> None:
    undecided = [page for page in all_pages() if not page.decided]
    assert {page.code for page in undecided} == set(TABLE) - {rule.code for rule in all_rules()}
    for page in undecided:
        assert "not detected by this version" in markdown(page).lower()
    assert explain().count("(not detected by this version)") == len(undecided)


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("DATA01", "DATA001"),
        ("loader-cereal", "loader-serial"),
        ("throttling", "GPU001"),
        ("loader.worker", "loader.workers"),
        ("persistent_workers", "loader.persistent"),
    ],
)
def test_unknown_finding_names_what_is_near(given: str, near: str) -> None:
    with pytest.raises(UsageError, match=near):
        explain(given)


@pytest.mark.parametrize("verdict", ["balanced", "too-short", "no-steps", "Too-Short"])
def test_a_verdict_without_a_finding_is_explained(verdict: str) -> None:
    assert explain(verdict).splitlines()[0] == f"# {verdict.lower()}"


def test_the_beginning_of_a_group_names_all_of_the_group() -> None:
    with pytest.raises(UsageError, match=r"DATA001 loader-serial, .*DATA008 loader-jitter"):
        explain("DATA")


def test_no_page_of_data_loading_is_about_gpus_alone() -> None:
    (page,) = [page for page in all_pages() if page.code == "DATA001"]
    assert "GPU" not in page.when


def test_unknown_finding_with_nothing_near() -> None:
    with pytest.raises(UsageError, match="`paceline explain` lists all"):
        explain("qqqqqqqq")


def test_pages_of_the_docs_are_those_of_the_rules() -> None:
    """When this fails: python -m paceline.explain.pages docs/findings."""
    found = {path.name: path.read_text(encoding="utf-8") for path in DOCS.glob("*.md")}
    assert found == files()


def test_writing_pages_removes_stale_ones(tmp_path: Path) -> None:
    (tmp_path / "OLD001-gone.md").write_text("old")
    write_pages(tmp_path / "pages")
    (tmp_path / "pages" / "OLD001-gone.md").write_text("old")
    write_pages(tmp_path / "pages")
    assert {path.name for path in (tmp_path / "pages").iterdir()} == set(files())
