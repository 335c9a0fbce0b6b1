"""Are the blocks of a page made by running them, and do the commands of the tutorial parse?"""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import pytest
import run_page
from run_page import PageError, blocks_of, faults, main

from paceline.cli import group

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial.md"

PAGE = """\
# A page

On <!-- machine -->nothing<!-- /machine -->.

<!-- runs in examples/photos after echo unseen; echo made > before -->

<!-- run -->
```console
$ pwd
typed by hand
$ echo kept > note; echo to stderr >&2; \\
  echo "$HOME_OF_NOBODY$PACELINE_RUN_DIR"
```

<!-- run exit=3 lines=3 -->
```console
$ cat note before; seq 5; exit 3
```
"""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_RUN_DIR", "elsewhere")
    path = tmp_path / "page.md"
    path.write_text(PAGE, encoding="utf-8")
    return path


def test_output_is_written_into_the_page(page: Path) -> None:
    assert main([str(page)]) == 0
    first, second = blocks_of(page.read_text(encoding="utf-8"))
    assert first.body == (
        "$ pwd\n~/paceline/examples/photos\n"
        '$ echo kept > note; echo to stderr >&2; \\\n  echo "$HOME_OF_NOBODY$PACELINE_RUN_DIR"\nto stderr\n\n'
    )
    assert second.body == "$ cat note before; seq 5; exit 3\nkept\nmade\n1\n...\n"
    assert second.options is not None
    assert second.options["exit"] == "3"
    assert "<!-- machine -->CPU, " in page.read_text(encoding="utf-8")
    assert "typed by hand" not in page.read_text(encoding="utf-8")


def test_a_page_that_was_run_is_in_order_and_stays_so(page: Path) -> None:
    main([str(page)])
    once = page.read_text(encoding="utf-8")
    assert faults(once) == []
    assert main(["--check", str(page)]) == 0
    main([str(page)])
    assert page.read_text(encoding="utf-8") == once


def test_the_checkout_is_not_touched(page: Path) -> None:
    main([str(page)])
    assert not (ROOT / "examples" / "photos" / "note").exists()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda text: text, "block 1 (pwd) was never run"),
        (lambda text: text.replace("<!-- run -->\n", ""), "block 1 (pwd) has no mark `<!-- run -->`"),
    ],
)
def test_blocks_that_were_not_run_are_named(change, fault: str) -> None:
    assert fault in faults(change(PAGE))


def test_an_edit_by_hand_is_noticed(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(page)])
    page.write_text(page.read_text(encoding="utf-8").replace("\nkept\n", "\nlost\n"), encoding="utf-8")
    assert main(["--check", str(page)]) == 1
    assert "block 2 (cat note before; seq 5; exit 3) was edited by hand after it was run" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("exit 3\n", "exit 4\n", "ended with exit code 4, expected 3"),
        ("$ pwd", "$ echo '```'", "prints a fence"),
        (" after echo unseen; echo made > before", " or so", "no line `<!-- runs in FOLDER -->`"),
    ],
)
def test_a_page_that_cannot_be_run_is_left_alone(page: Path, old: str, new: str, message: str) -> None:
    page.write_text(PAGE.replace(old, new), encoding="utf-8")
    with pytest.raises(PageError, match=message):
        main([str(page)])
    assert page.read_text(encoding="utf-8") == PAGE.replace(old, new)


def test_commands_see_a_new_users_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_TUNE_ALLOW", "semantic")
    env = run_page.environment(tmp_path)
    assert [name for name in env if name.startswith("PACELINE_")] == []
    assert env["XDG_STATE_HOME"].startswith(str(tmp_path.parent))


def paceline_commands() -> list[str]:
    blocks = blocks_of(TUTORIAL.read_text(encoding="utf-8"))
    return [command for block in blocks for command in block.commands]


def parse(words: list[str]) -> None:
    """Parse a command line as the program would, without running it or looking at files."""
    verb, *rest = words
    with click.Context(group) as context:
        command = group.get_command(context, verb)
        assert command is not None, f"there is no verb {verb}"
        inner = click.Context(command, info_name=verb, parent=context, **command.context_settings)
        command.make_parser(inner).parse_args(list(rest))


@pytest.mark.parametrize("line", paceline_commands())
def test_commands_of_the_tutorial_parse(line: str) -> None:
    program, *words = shlex.split(line)
    assert program == "paceline"
    parse(words)


def test_unknown_options_do_not_parse() -> None:
    with pytest.raises(click.UsageError):
        parse(["compare", "--strickt", "a", "b"])


def test_the_tutorial_runs_tunes_compares_and_patches() -> None:
    verbs = [line.split()[1] for line in paceline_commands()]
    assert verbs == ["run", "tune", "run", "compare", "tune", "tune"]


def test_every_block_of_the_tutorial_was_made_by_running_it() -> None:
    assert faults(TUTORIAL.read_text(encoding="utf-8")) == []
