"""One table of remedies: every id that the package uses is in it, and every row has a page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from paceline.core.recipe import SETTINGS
from paceline.core.remedies import (
    PRECISION_REMEDIES,
    REMEDIES,
    SAFETY_CLASSES,
    SAFETY_MEANING,
    RemedyInfo,
    least_safe,
    remedy_info,
)
from paceline.explain.advice import advice_pages
from paceline.explain.model import Remedy
from paceline.explain.rules import Rule, all_rules
from paceline.tune import remedies as tunable
from paceline.tune.pages import files as remedy_files
from paceline.tune.pages import remedy_pages
from paceline.tune.patches import suggestions

ROOT = Path(__file__).parents[2]
SOURCE, DOCS = ROOT / "src" / "paceline", ROOT / "docs"
every_row = pytest.mark.parametrize("row", REMEDIES.values(), ids=REMEDIES)
every_rule = pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.code)


def remedies_made_in(path: Path) -> Iterator[dict[str, str]]:
    """The literal arguments of every ``Remedy(...)`` in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Remedy":
            yield {k.arg: k.value.value for k in node.keywords if k.arg and isinstance(k.value, ast.Constant)}


def file_of(rule: Rule) -> Path:
    return Path(import_module((rule.check or rule.check_traces).__module__).__file__)


def test_a_remedy_that_the_table_lacks_cannot_be_made():
    with pytest.raises(ValueError, match=r"'loader.worker' is not in the table .*did you mean 'loader.workers'"):
        Remedy(id="loader.worker", safety="exact", change="more workers")
    assert (
        Remedy(id="loader.workers", safety="exact", change="more workers").info.title
        == REMEDIES["loader.workers"].title
    )


def test_tune_cannot_try_what_the_table_calls_advice():
    with pytest.raises(ValueError, match="cannot try 'loader.decode'"):
        tunable.TunableRemedy(id="loader.decode", page="", candidates=lambda _: [])


@pytest.mark.parametrize("path", sorted(SOURCE.glob("explain/**/*.py")), ids=lambda path: path.stem)
def test_findings_take_ids_and_safety_classes_from_the_table(path):
    for made in remedies_made_in(path):
        if "id" in made:
            assert made.get("safety", remedy_info(made["id"]).safety) in remedy_info(made["id"]).classes


@every_rule
def test_the_page_of_a_finding_names_every_remedy_that_its_rule_proposes(rule):
    assert {made["id"] for made in remedies_made_in(file_of(rule)) if "id" in made} <= set(rule.remedies)


@every_rule
def test_every_id_on_the_page_of_a_finding_is_in_the_table(rule):
    families = {row.family for row in REMEDIES.values()} - {"shapes"}
    named = re.findall(r"`([a-z]+\.[a-z_0-9]+)`", rule.page)
    assert [name for name in named if name.partition(".")[0] in families and name not in REMEDIES] == []


def test_rules_propose_the_number_of_workers_or_threads_under_an_id_of_the_table():
    code = (SOURCE / "explain" / "words.py").read_text(encoding="utf-8")
    ids = re.findall(r'return "([a-z]+\.[a-z_]+)", f"', code)
    assert set(ids) == {"loader.workers", "loader.threads"}
    assert set(ids) <= set(REMEDIES)


def test_tune_has_a_module_for_every_row_that_it_can_try_and_no_other():
    assert {one.id for one in tunable.all_remedies()} == {row.id for row in REMEDIES.values() if row.tunable}


@pytest.mark.parametrize("path", sorted(Path(tunable.__file__).parent.glob("[a-z]*.py")), ids=lambda path: path.stem)
def test_candidates_carry_the_id_of_their_module(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "Candidate"]
    ids = [k.value.value for call in calls for k in call.keywords if k.arg == "remedy"]
    assert {one.replace(".", "_") for one in ids} <= {path.stem}


@every_row
def test_settings_are_those_of_recipes(row):
    assert set(row.settings) <= set(SETTINGS)
    assert bool(row.settings) == row.tunable


def test_every_setting_of_a_recipe_belongs_to_a_remedy():
    assert {key for row in REMEDIES.values() for key in row.settings} == set(SETTINGS)


def test_suggestions_and_number_formats_use_ids_of_the_table():
    used = {*suggestions._AT_NAMED_LINES.values(), *suggestions._AT_SAVES.values(), suggestions._SHARDS}
    assert used | set(PRECISION_REMEDIES.values()) <= set(REMEDIES)


def test_plan_knows_the_remedy_of_every_number_format_that_it_offers():
    from paceline.plan.search.advice import _NARROWER

    assert {name for narrower in _NARROWER.values() for name in narrower} <= set(PRECISION_REMEDIES)


@every_row
def test_a_row_has_a_title_a_class_and_a_page(row: RemedyInfo):
    assert re.fullmatch(r"[a-z]+\.[a-z0-9_]+", row.id)
    assert re.fullmatch(r"[A-Z].{8,60}[^.]", row.title)
    assert row.classes
    assert list(row.classes) == sorted(row.classes, key=SAFETY_CLASSES.index)
    (page,) = [page for page in remedy_pages() if page.info is row]
    assert len(page.body.split()) > 40


def test_ids_and_titles_are_unique_and_sorted():
    assert list(REMEDIES) == sorted(REMEDIES)
    assert len({row.title for row in REMEDIES.values()}) == len(REMEDIES)


def test_advice_pages_are_those_of_the_rows_that_tune_cannot_try():
    assert set(advice_pages()) == {row.id for row in REMEDIES.values() if not row.tunable}


@pytest.mark.parametrize("remedy", advice_pages())
def test_an_advice_page_says_when_it_helps_how_safe_it_is_and_how_to_do_it(remedy):
    page = advice_pages()[remedy]
    assert re.findall(r"^## (.+)$", page, flags=re.MULTILINE) == ["When it helps", "Safety class", "How to do it"]
    assert all(len(section.split()) >= 5 for section in re.split(r"^## .+$", page, flags=re.MULTILINE))


@every_row
def test_the_safety_section_of_a_page_names_the_classes_of_the_row(row):
    (page,) = [page for page in remedy_pages() if page.info is row]
    section = page.body.partition("## Safety class")[2].partition("\n## ")[0]
    words = re.findall(r"\b(exact|resampled|numeric|semantic)\b", section, flags=re.IGNORECASE)
    assert words[0].lower() == row.safety
    assert set(row.classes) <= {word.lower() for word in words}


@pytest.mark.parametrize("folder", ["findings", "remedies"])
def test_links_between_pages_lead_to_files(folder):
    for path in (DOCS / folder).glob("*.md"):
        links = re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8"))
        assert [link for link in links if "://" not in link and not (path.parent / link).is_file()] == []


def test_findings_and_remedies_link_to_each_other():
    there = {
        (path.name, link)
        for path in (DOCS / "findings").glob("[A-Z]*.md")
        for link in re.findall(r"\(\.\./remedies/([^)]+)\)", path.read_text(encoding="utf-8"))
    }
    back = {
        (link, name) for name, text in remedy_files().items() for link in re.findall(r"\(\.\./findings/([^)]+)\)", text)
    }
    assert there
    assert there == back


@pytest.mark.parametrize("page", ["reference/train.md", "how-to/tune.md", "how-to/read-the-json.md"])
def test_remedies_named_in_the_documentation_are_in_the_table(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    assert set(re.findall(r"\(\.\./remedies/([a-z0-9_]+\.[a-z0-9_]+)\.md\)", text)) <= set(REMEDIES)


def test_remedies_of_the_labelled_programs_are_in_the_table():
    labels = (ROOT / "tests" / "labelled" / "labels.toml").read_text(encoding="utf-8")
    lists = re.findall(r"^(?:must_propose|must_not_propose|not_exact) = \[(.*)\]", labels, flags=re.MULTILINE)
    ids = {name for one in lists for name in re.findall(r'"([^"]+)"', one)}
    assert ids
    assert ids <= set(REMEDIES)


def test_classes_are_ordered_from_safest_to_least_safe():
    assert SAFETY_CLASSES == ("exact", "resampled", "numeric", "semantic")
    assert set(SAFETY_MEANING) == set(SAFETY_CLASSES)
    assert least_safe(["numeric", "exact", "resampled"]) == "numeric"
    assert least_safe(["exact", "resampled"]) == "resampled"
    assert least_safe([]) == "exact"
