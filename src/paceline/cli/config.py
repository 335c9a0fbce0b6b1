"""``paceline config``: every setting in force, and where its value comes from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from paceline.cli.settings import defaults_of, name_variables, options_of, settings_file, settings_map
from paceline.errors import UsageError

_VERBS = ("run", "report", "compare")  # those that have settings
_SWITCHES = {
    "PACELINE_DISABLE": "1: `paceline run` starts the program and does nothing else",
    "PACELINE_DEBUG": "1: a fault of ours shows where it happened",
    "PACELINE_HISTORY": "off, or the file in which `paceline tune` keeps what trials achieved",
    "PACELINE_CACHE": "off, or the folder in which data sets of stores are kept",
    "NO_COLOR": "anything: no colour",
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting as it is in force."""

    verb: str
    key: str
    value: str
    origin: str
    given: bool  # not the default


@click.command(
    name="config",
    short_help="Show the settings in force and where each comes from.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("verb", required=False)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(ctx: click.Context, verb: str | None, flags: tuple[str, ...]) -> int:
    """Show every setting, its value in force and where that is from.

    Flags win over variables (PACELINE_VERB_KEY), those over the file (paceline.toml, or [tool.paceline] in
    pyproject.toml), and that over the default. FLAGS after a VERB are read as that verb would read them.

    \b
    paceline config
    paceline config run
    paceline config run --price 2.49
    """
    if verb is not None and verb not in _VERBS:
        raise UsageError(f"{verb!r} has no settings; there are those of {', '.join(_VERBS)}")
    tables = settings_map()
    shown = [s for name in ([verb] if verb else _VERBS) for s in settings_in_force(ctx, name, tables, flags)]
    click.echo(f"file: {settings_file(Path.cwd()) or 'none (paceline.toml or [tool.paceline] in pyproject.toml)'}")
    _print(shown)
    if verb is None:
        _print_switches()
    for unknown in sorted(set(tables) - set(_VERBS)):
        click.echo(f"paceline: the table [{unknown}] in the file belongs to no verb", err=True)
    return 0


def settings_in_force(
    ctx: click.Context, verb: str, tables: dict[str, Any], flags: Sequence[str] = ()
) -> Iterator[Setting]:
    """Yield the settings of a verb as it would see them with these flags."""
    command: click.Command = import_module(f"paceline.cli.{verb}").command
    inner = click.Context(command, info_name=verb, parent=ctx.parent)
    name_variables(verb, command)
    inner.default_map = defaults_of(verb, command, tables)
    given, _, _ = command.make_parser(inner).parse_args(list(flags))
    for key, option in options_of(command).items():
        option.handle_parse_result(inner, given, [])
        name = str(option.name)
        source = inner.get_parameter_source(name) or ParameterSource.DEFAULT
        yield Setting(
            verb=verb,
            key=key,
            value=_text(inner.params.get(name)),
            origin=_origin(source, option, key),
            given=source is not ParameterSource.DEFAULT,
        )


def _origin(source: ParameterSource, option: click.Option, key: str) -> str:
    if source is ParameterSource.ENVIRONMENT:
        return str(option.envvar)
    if source is ParameterSource.DEFAULT_MAP:
        return str(settings_file(Path.cwd()))
    return f"--{key.replace('_', '-')}" if source is ParameterSource.COMMANDLINE else "default"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if isinstance(value, str | float | Path) else "not set"  # click has a mark of its own for that


def _print(settings: Sequence[Setting]) -> None:
    rows = [(f"{s.verb}.{s.key}", s.value, s.origin) for s in settings]
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    for row, setting in zip(rows, settings, strict=True):
        line = f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}"
        click.secho(line, bold=setting.given)


def _print_switches() -> None:
    import os

    for name, meaning in _SWITCHES.items():
        value = os.environ.get(name)
        click.echo(f"{name}={value or ''}  {'environment' if value else 'not set'} ({meaning})")
