"""Does the reference name every option, key, file and field that there is?"""

from __future__ import annotations

import json
import os
import re
from importlib.resources import files
from pathlib import Path

import click
import pytest

from paceline.cli import VERBS, group
from paceline.cli.base.command import EXIT_CODES, Command, grouped, option_rows
from paceline.cli.data import VERBS as DATA_VERBS
from paceline.cli.plan import VERBS as PLAN_VERBS
from paceline.record import layout

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def text(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def sections() -> list[str]:
    """Names of all verbs that a page of help is shown for."""
    rooms = {"data": DATA_VERBS, "plan": PLAN_VERBS}
    return [
        name for verb in VERBS for name in ([f"{verb} {each}" for each in rooms[verb]] if verb in rooms else [verb])
    ]


def as_markdown(name: str) -> str:
    """Return the usage, examples, options and exit codes of a verb."""
    ctx = click.Context(group, info_name="paceline", **group.context_settings)
    command: click.Command = group
    for word in name.split():
        assert isinstance(command, click.Group)
        found = command.get_command(ctx, word)
        assert found is not None
        command, ctx = found, click.Context(found, info_name=word, parent=ctx)
    assert isinstance(command, Command)
    usage = click.HelpFormatter(width=120)
    command.format_usage(ctx, usage)
    lines = [
        (command.help or "").replace("\n", " ").partition("  ")[0].strip(),
        "",
        "```text",
        usage.getvalue().rstrip(),
    ]
    lines += ["", *command.examples, "```"]
    for heading, options in grouped(command.params, command.groups).items():
        rows = list(option_rows(options, ctx))
        if rows:
            lines += ["", f"| {heading.lower()} | meaning |", "|---|---|"]
            lines += [f"| `{escaped(flags)}` | {escaped(meaning)} |" for flags, meaning in rows]
    codes = [f"{code}: {meaning}" for code, meaning in command.exit_codes.items() if EXIT_CODES.get(code) != meaning]
    return "\n".join([*lines, *(["", f"Exit codes: {'; '.join(codes)}."] if codes else [])])


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("  [", " [")


def test_reference_shows_the_help_of_every_verb() -> None:
    """PACELINE_UPDATE_REFERENCE=1 writes it anew."""
    blocks = re.compile(r"(<!-- help: ([a-z ]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
    page = text("cli.md")
    made = blocks.sub(lambda found: f"{found[1]}{as_markdown(found[2])}\n{found[4]}", page)
    assert sorted(found[2] for found in blocks.finditer(page)) == sorted(sections())
    if os.environ.get("PACELINE_UPDATE_REFERENCE"):
        (REFERENCE / "cli.md").write_text(made, encoding="utf-8")
    assert made == text("cli.md"), "run this test once with PACELINE_UPDATE_REFERENCE=1"


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_are_finished(page: Path) -> None:
    content = page.read_text(encoding="utf-8")
    assert not re.search(r"@@\w", content)  # a placeholder; the hunk header of a diff has a space there
    assert "/work/" not in content
    assert "/home/" not in content
