"""Does the reference name every option, key, file and field that there is?"""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

import click
import pytest

from paceline.cli import VERBS, group
from paceline.cli.data import VERBS as DATA_VERBS
from paceline.cli.plan import VERBS as PLAN_VERBS
from paceline.explain.pages import TABLE
from paceline.record import layout

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def text(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_is_in_the_reference(verb: str) -> None:
    with click.Context(group) as ctx:
        command = group.get_command(ctx, verb)
    assert command is not None
    _, _, section = text("cli.md").partition(f"## `paceline {verb}`")
    section = section.partition("\n## ")[0]
    flags = [flag for param in command.params if isinstance(param, click.Option) for flag in param.opts]
    assert [flag for flag in flags if f"`{flag}" not in section] == []


@pytest.mark.parametrize(
    ("room", "verb"), [*(("data", verb) for verb in DATA_VERBS), *(("plan", verb) for verb in PLAN_VERBS)]
)
def test_every_option_of_a_room_is_in_the_reference(room: str, verb: str) -> None:
    with click.Context(group) as ctx:
        found = group.get_command(ctx, room)
        command = found.get_command(ctx, verb) if isinstance(found, click.Group) else None
    assert command is not None
    _, _, section = text("cli.md").partition(f"### `paceline {room} {verb}`")
    section = section.partition("\n##")[0]
    flags = [flag for param in command.params if isinstance(param, click.Option) for flag in param.opts]
    assert section
    assert [flag for flag in flags if f"`{flag}" not in section and f"[{flag}]" not in section] == []


def test_every_key_of_a_run_is_in_the_reference() -> None:
    schema = json.loads(files("paceline.report").joinpath("assets", "run.schema.json").read_text(encoding="utf-8"))
    section = text("json.md").partition("## `paceline.compare/1`")[0]
    assert [key for key in schema["properties"] if f"`{key}`" not in section] == []


def test_every_phase_is_in_the_reference() -> None:
    assert [phase for phase in layout.PHASES if f"`{phase}`" not in text("json.md")] == []


def test_every_file_and_field_of_a_record_is_in_the_reference() -> None:
    page = text("record.md")
    names = [layout.META_FILE, layout.STEPS_FILE, layout.TICKS_FILE, layout.NOTES_FILE, layout.SUMMARY_FILE]
    places = [layout.RANKS_DIR, layout.WORKERS_DIR, layout.GAUGES_DIR]
    slots = {f"{slot}_s" for slot in layout.PHASES}
    fields = [field for field in layout.STEP_FIELDS if field not in slots]
    assert [name for name in [*names, *places, *fields] if name not in page] == []
    assert f"{layout.STEP.size} bytes" in page
    assert f"{layout.STEP.size} bytes" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_number_of_findings_is_right() -> None:
    assert f"{len(TABLE)} findings" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_are_finished(page: Path) -> None:
    content = page.read_text(encoding="utf-8")
    assert "@@" not in content
    assert "/work/" not in content
    assert "/home/" not in content
