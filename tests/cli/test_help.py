"""Is the help of every verb complete, in one style, and quick; do its examples parse; does completion work?"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.cli.conftest import call

from paceline.cli import VERBS, group
from paceline.cli.base.command import OTHER, Command, grouped
from paceline.cli.base.lazy_group import LazyGroup

SLOW_PACKAGES = ("torch", "rich", "libcst")


def commands() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Yield every verb with its path and a context for it."""
    root = click.Context(group, info_name="paceline")
    for verb in VERBS:
        command = group.get_command(root, verb)
        assert command is not None
        inner = click.Context(command, info_name=verb, parent=root)
        yield verb, command, inner
        for name in command.verbs if isinstance(command, LazyGroup) else ():
            below = command.get_command(inner, name)
            assert below is not None
            yield f"{verb} {name}", below, click.Context(below, info_name=name, parent=inner)


ALL = {path: (command, ctx) for path, command, ctx in commands()}
LEAVES = [path for path, (command, _) in ALL.items() if not isinstance(command, click.Group)]


@pytest.mark.parametrize("path", ALL)
def test_help_has_a_sentence_examples_and_exit_codes(path: str) -> None:
    command, ctx = ALL[path]
    text = command.get_help(ctx)
    assert [line for line in ("Usage: ", "\nExamples:\n", "\nExit codes:\n") if line not in text] == []
    assert 1 <= len(command.examples) <= 4  # type: ignore[attr-defined]
    sentence = (command.help or "").partition("\n\n")[0]
    assert sentence.endswith((".", ":"))
    assert "\\b" not in text


@pytest.mark.parametrize("path", LEAVES)
def test_every_option_has_a_heading_a_text_and_a_readable_value(path: str) -> None:
    command, ctx = ALL[path]
    ctx.help_option_names = ["-h", "--help"]
    assert isinstance(command, Command)
    headings = grouped(command.get_params(ctx), command.groups)
    assert [set(option.opts) for option in headings[OTHER]] == [{"-h", "--help"}]
    options = [param for param in command.params if isinstance(param, click.Option)]
    assert [option.opts for option in options if not (option.help or "").endswith(".")] == []
    assert not re.search(r"INTEGER|FLOAT|RANGE|PATH|x>", command.get_help(ctx))


@pytest.mark.parametrize("path", LEAVES)
def test_examples_parse(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every option in an example exists and takes the value that the example gives it."""
    monkeypatch.chdir(tmp_path)
    command, _ = ALL[path]
    for example in command.examples:  # type: ignore[attr-defined]
        words = shlex.split(example)
        assert words[0] == "paceline"
        resolved: click.Command = group
        ctx = click.Context(group, info_name="paceline", auto_envvar_prefix="NONE")
        rest = words[1:]
        while isinstance(resolved, click.Group):
            if isinstance(resolved, LazyGroup) and resolved.name == "plan" and rest[0] not in resolved.verbs:
                rest = ["for", *rest]
            found = resolved.get_command(ctx, rest[0])
            assert found is not None, example
            resolved, ctx, rest = found, _context(found, rest[0], ctx), rest[1:]
        assert resolved.name == path.rsplit(maxsplit=1)[-1]
        resolved.parse_args(ctx, rest)


def _context(command: click.Command, name: str, parent: click.Context) -> click.Context:
    return click.Context(command, info_name=name, parent=parent, **command.context_settings)


@pytest.mark.parametrize("width", ["60", "200"])
def test_help_fits_narrow_terminals(tmp_path: Path, width: str) -> None:
    done = call("tune", "--help", cwd=tmp_path, COLUMNS=width)
    examples = set(ALL["tune"][0].examples)  # type: ignore[attr-defined]
    too_long = [x for x in done.stdout.splitlines() if len(x) > int(width) and x.strip() not in examples]
    assert [line for line in too_long if not line.lstrip().startswith(("-", "paceline tune"))] == []


def test_the_main_help_lists_the_exit_codes_of_its_verbs(tmp_path: Path) -> None:
    codes = call("--help", cwd=tmp_path).stdout.partition("Exit codes:")[2]
    assert re.findall(r"^  (\w+) ", codes, re.MULTILINE) == ["0", "1", "2", "3", "130", "other"]


@pytest.mark.parametrize("verb", ["report", "compare", "profile"])
def test_runs_before_the_last_are_in_the_help(verb: str, tmp_path: Path) -> None:
    assert "`last~1`" in call(verb, "--help", cwd=tmp_path).stdout


def test_plan_shows_its_options(tmp_path: Path) -> None:
    text = call("plan", "--help", cwd=tmp_path).stdout
    assert [flag for flag in ("--gpus", "--layout", "--target-tokens", "calibrate") if flag not in text] == []


@pytest.mark.parametrize("arguments", [[], ["data"], ["plan"], ["-h"], ["run", "-h"], ["--version"]])
def test_help_and_version_go_to_stdout(tmp_path: Path, arguments: list[str]) -> None:
    done = call(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(("Usage: ", "paceline, version "))


@pytest.mark.parametrize("path", ["", *ALL])
def test_help_imports_nothing_slow(path: str) -> None:
    code = (
        "import sys\nfrom paceline.cli import group\n"
        f"try:\n    group.main({[*path.split(), '--help']!r}, standalone_mode=True)\n"
        f"finally:\n    print([name for name in {SLOW_PACKAGES!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "[]"


def complete(words: str, place: Path) -> list[str]:
    """Ask for completions as bash does, of the last word."""
    parts = words.split(" ")
    environment = {
        "_PACELINE_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(parts),
        "COMP_CWORD": str(len(parts) - 1),
    }
    code = "from paceline.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=place,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("paceline t", ["plain,tune", "plain,trace"]),
        ("paceline data ver", ["plain,verify"]),
        ("paceline run --js", ["plain,--json"]),
        ("paceline run tr", ["file,tr"]),
        ("paceline run train.py --js", ["file,--js"]),
        ("paceline plan cal", ["plain,calibrate"]),
        ("paceline plan --cata", ["plain,--catalogue"]),
        ("paceline plan --here", ["plain,--here"]),
        ("paceline tune --allow num", ["plain,numeric"]),
        ("paceline explain data00", [f"plain,DATA00{number}" for number in range(1, 9)]),
        ("paceline explain loader.wo", ["plain,loader.workers"]),
        ("paceline config tu", ["plain,tune"]),
        ("paceline run --instance p5.48", ["plain,p5.48xlarge"]),
        ("paceline report la", ["plain,last", "plain,last~1"]),
        ("paceline compare last run-", ["plain,run-1"]),
    ],
)
def test_completion(tmp_path: Path, words: str, found: list[str]) -> None:
    (tmp_path / ".paceline" / "runs" / "run-1" / "ranks").mkdir(parents=True)
    assert complete(words, tmp_path) == found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(tmp_path: Path, shell: str) -> None:
    done = call(cwd=tmp_path, _PACELINE_COMPLETE=f"{shell}_source")
    assert done.returncode == 0
    assert "_PACELINE_COMPLETE" in done.stdout
