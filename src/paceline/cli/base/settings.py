"""Settings: flags override PACELINE_* variables, variables override the settings file, the file overrides defaults.

The settings file is ``paceline.toml``, or ``[tool.paceline]`` in ``pyproject.toml``, in the current folder or in the
nearest parent folder that has one of them. Each command has a table, ``[run]`` or ``[data.convert]``. Its keys are the
options without dashes (``target_loss = 0.5``); environment variables have matching names
(``PACELINE_RUN_TARGET_LOSS``).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from paceline.core.errors import UsageError, did_you_mean, nearest

PREFIX = "PACELINE"


def settings_file(start: Path) -> Path | None:
    """Return the nearest settings file in a folder or its parent folders; None without one."""
    for folder in (start, *start.parents):
        own = folder / "paceline.toml"
        if own.is_file():
            return own
        project = folder / "pyproject.toml"
        if project.is_file() and "paceline" in _load(project).get("tool", {}):
            return project
    return None


def settings_map(start: Path | None = None) -> dict[str, Any]:
    """Return the settings of the nearest settings file, by command and key; empty without a file.

    Raises:
        UsageError: The file is not TOML, or the settings of a command are not a table.
    """
    path = settings_file(start or Path.cwd())
    if path is None:
        return {}
    content = _load(path)
    found: dict[str, Any] = content.get("tool", {}).get("paceline", {}) if path.name == "pyproject.toml" else content
    for verb, table in found.items():
        if not isinstance(table, dict):
            raise UsageError(f"{path}: {verb!r} must be a table such as [run], not {table!r}")
    return found


def options_of(command: click.Command) -> dict[str, click.Option]:
    """Return the options of a command that have a long flag, by key (the long flag without its dashes)."""
    options = [param for param in command.params if isinstance(param, click.Option)]
    return {_key(option): option for option in options if max(option.opts, key=len).startswith("--")}


def _key(option: click.Option) -> str:
    longest = max(option.opts, key=len)
    return longest.lstrip("-").replace("-", "_")


def variable(path: Sequence[str], key: str) -> str:
    """Return the name of a setting's environment variable, such as ``PACELINE_DATA_CONVERT_SEED``."""
    return "_".join([PREFIX, *path, key]).upper()


def name_variables(path: Sequence[str], command: click.Command) -> None:
    """Set the environment variable of each option of a command, named after its flag."""
    for key, option in options_of(command).items():
        option.envvar = option.envvar or variable(path, key)


def warn_of_misspelled_variables(path: Sequence[str], command: click.Command, environment: Mapping[str, str]) -> None:
    """Print a line for each environment variable whose name is similar to that of a setting of a command.

    Args:
        path: Names of the command and the groups above it, such as ``("data", "convert")``.
        command: The command, whose options have their variables.
        environment: The environment variables of the process.
    """
    known = [str(option.envvar) for option in options_of(command).values()]
    own = [name for name in environment if name.startswith(variable(path, "")) and name not in known]
    for name in own:
        for near in nearest(name, known, cutoff=0.85):
            click.echo(f"paceline: {name} is no setting and has no effect; did you mean {near}?", err=True)


def defaults_of(path: Sequence[str], command: click.Command, tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of one command, by the name of click's parameter.

    Args:
        path: Names of the command and the groups above it, such as ``("data", "convert")``.
        command: The command.
        tables: All settings of the file.

    Raises:
        UsageError: A key is not an option of the command.
    """
    options = options_of(command)
    table = table_of(path, tables)
    if isinstance(command, click.Group):
        return {}  # the tables of its commands are checked when these are imported
    for key in table:
        if key not in options:
            raise UsageError(f"{_where()}: [{'.'.join(path)}] has no setting {key!r}{_near(key, options)}")
    return {str(options[key].name): value for key, value in table.items()}


def table_of(path: Sequence[str], tables: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the table of a command; empty if the file has none.

    Raises:
        UsageError: The value is not a table.
    """
    found = tables
    for name in path:
        inner = found.get(name, {})
        if not isinstance(inner, dict):
            raise UsageError(f"{_where()}: {name!r} must be a table such as [{'.'.join(path)}], not {inner!r}")
        found = inner
    return found


def _where() -> str:
    return str(settings_file(Path.cwd()) or "the settings file")


def _near(key: str, options: Mapping[str, click.Option]) -> str:
    return did_you_mean(key, options, otherwise=f"; its settings are {', '.join(options)}")


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from error
    except OSError:
        return {}
