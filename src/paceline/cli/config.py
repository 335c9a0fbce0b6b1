"""``paceline config``: the current settings, and the source of each value."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from paceline.cli.base.command import Command
from paceline.cli.base.lazy_group import LazyGroup
from paceline.cli.base.numbers import Duration
from paceline.cli.base.settings import options_of, settings_file, settings_map
from paceline.core.errors import UsageError, nearest

_SWITCHES = {
    "PACELINE_DISABLE": "1: `paceline run` starts the program and does nothing else",
    "PACELINE_DEBUG": "1: errors show a traceback",
    "PACELINE_HISTORY": "off, or the file in which `paceline tune` stores the results of trials",
    "PACELINE_CACHE": "off, or the folder in which data sets from object storage are cached",
    "NO_COLOR": "any value: no colours",
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The current value of one setting."""

    verb: str  # such as "run" or "data.convert"
    key: str
    value: str
    origin: str
    given: bool  # whether the user set it, instead of the default


def _complete_verb(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the commands that begin with the given text, for shell completion."""
    root = ctx.find_root().command
    named = [] if not isinstance(root, LazyGroup) else [name for name in root.verbs if name.startswith(incomplete)]
    return [] if ctx.params.get("words") else named


@click.command(
    cls=Command,
    name="config",
    forms=("[OPTIONS] [VERB [FLAGS]...]",),
    examples=(
        "paceline config",
        "paceline config tune",
        "paceline config run --price 2.49",
        "paceline config data convert",
    ),
    groups={"What to show": ("--all",)},
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Show all settings of all commands, including settings that have their default value.",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[VERB [FLAGS]...]", shell_complete=_complete_verb)
@click.pass_context
def command(ctx: click.Context, words: tuple[str, ...], everything: bool) -> int:
    """Show the current settings and where each one comes from.

    Flags override environment variables (PACELINE_VERB_OPTION). Variables override the settings file, which is
    paceline.toml or [tool.paceline] in pyproject.toml. The file overrides the defaults. With VERB, all settings of that
    verb are shown. FLAGS after VERB count as if they were given to the verb.
    """
    tables = settings_map()
    verbs = dict(_verbs(ctx))
    path, flags = _split(words, verbs)
    chosen = [path] if path else list(verbs)
    settings = [setting for each in chosen for setting in settings_in_force(*verbs[each], each, flags)]
    shown = [setting for setting in settings if path or everything or setting.given]
    click.echo(f"file: {settings_file(Path.cwd()) or 'none (paceline.toml, or [tool.paceline] in pyproject.toml)'}")
    _print(shown)
    if not path:
        _print_switches()
    if not path and not everything:
        names = ", ".join(" ".join(each) for each in verbs)
        click.echo(
            f"all other settings have their default values; `paceline config VERB` shows the settings of a "
            f"command. Commands: {names}"
        )
    _warn_of_unknown(tables, verbs)
    return 0


def settings_in_force(
    command: click.Command, parent: click.Context, path: tuple[str, ...], flags: Sequence[str] = ()
) -> Iterator[Setting]:
    """Yield the settings that a command would use if these flags were given."""
    inner = click.Context(command, info_name=path[-1], parent=parent)
    given, _, _ = command.make_parser(inner).parse_args(list(flags))
    for key, option in options_of(command).items():
        with suppress(click.MissingParameter):  # shown as not set
            option.handle_parse_result(inner, given, [])
        name = str(option.name)
        source = inner.get_parameter_source(name) or ParameterSource.DEFAULT
        yield Setting(
            verb=".".join(path),
            key=key,
            value=_text(inner.params.get(name), option),
            origin=_origin(source, option, key),
            given=source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP),
        )


def _verbs(ctx: click.Context) -> Iterator[tuple[tuple[str, ...], tuple[click.Command, click.Context]]]:
    """Yield every command that has settings: the words that name it, the command, and the context of its group."""
    assert ctx.parent is not None
    root = ctx.parent.command
    assert isinstance(root, LazyGroup)
    for name in root.verbs:
        parent = click.Context(root, info_name=ctx.parent.info_name)  # a context holds the settings of one command
        command = root.get_command(parent, name)
        if isinstance(command, LazyGroup):
            for inner_name in command.verbs:
                group = click.Context(command, info_name=name, parent=parent)
                inner = command.get_command(group, inner_name)
                if inner is not None and options_of(inner):
                    yield (name, inner_name), (inner, group)
        elif command is not None and name != ctx.info_name and options_of(command):
            yield (name,), (command, parent)


def _split(words: Sequence[str], verbs: dict[tuple[str, ...], Any]) -> tuple[tuple[str, ...], Sequence[str]]:
    """Return the words that name a command (empty without any words), and the flags after them.

    Raises:
        UsageError: There is no such command, or it has no settings.
    """
    if not words:
        return (), ()
    for length in (2, 1):
        if tuple(words[:length]) in verbs:
            return tuple(words[:length]), words[length:]
    known = [" ".join(path) for path in verbs]
    near = nearest(" ".join(words[:2]), known) or nearest(words[0], known)
    meant = f"; did you mean `paceline config {near[0]}`?" if near else "."
    raise UsageError(
        f"no command with settings is called {words[0]!r}{meant} The commands with settings are {', '.join(known)}"
    )


def _origin(source: ParameterSource, option: click.Option, key: str) -> str:
    if source is ParameterSource.ENVIRONMENT:
        return str(option.envvar)
    if source is ParameterSource.DEFAULT_MAP:
        return str(settings_file(Path.cwd()))
    return f"--{key.replace('_', '-')}" if source is ParameterSource.COMMANDLINE else "default"


def _text(value: object, option: click.Option) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(option.type, Duration) and isinstance(value, float):
        return f"{value:g} s"
    return (
        str(value) if isinstance(value, str | int | float | Path) else "not set"
    )  # click has its own marker for unset values


def _print(settings: Sequence[Setting]) -> None:
    rows = [(f"{s.verb}.{s.key}", s.value, s.origin) for s in settings]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
    for row, setting in zip(rows, settings, strict=True):
        line = f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}"
        click.secho(line, bold=setting.given)


def _print_switches() -> None:
    for name, meaning in _SWITCHES.items():
        value = os.environ.get(name)
        click.echo(f"{name}={value or ''}  {'environment' if value else 'not set'} ({meaning})")


def _warn_of_unknown(tables: dict[str, Any], verbs: dict[tuple[str, ...], Any]) -> None:
    """Warn about tables of the settings file that belong to no command."""
    for name, table in sorted(tables.items()):
        inner = {path[1] for path in verbs if path[0] == name and len(path) == 2}
        unknown = [f"{name}.{key}" for key in table if key not in inner] if inner else []
        if (name,) not in verbs and not inner:
            unknown = [name]
        for each in unknown:
            near = nearest(each, [".".join(path) for path in verbs])
            meant = f"; did you mean [{near[0]}]?" if near else ""
            text = f"paceline: [{each}] in the settings file belongs to no command and has no effect{meant}"
            click.echo(text, err=True)
