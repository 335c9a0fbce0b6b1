"""click's usage errors in Paceline's style: the given value, the allowed values, and the next command."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
from click.core import ParameterSource

from paceline.core.errors import nearest

_TYPES = {
    "is not a valid integer range": "is not a whole number",
    "is not a valid integer": "is not a whole number",
    "is not a valid float range": "is not a number",
    "is not a valid float": "is not a number",
}
_MOST = 3  # number of commands that an error names
_ALIKE = 0.7  # least similarity of two flags if one is a typing error of the other
_LEAST = re.compile(r"is not in the range x>=([\d.]+)")
_ABOVE = re.compile(r"is not in the range x>([\d.]+)")


def message_of(error: click.ClickException) -> str:
    """Return an error of click as one line."""
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx is not None else "paceline"
    if isinstance(error, click.NoSuchOption):
        meant = _owner(error.option_name, ctx) or _near(error, ctx)
        return f"`{path}` has no option {error.option_name}{meant}; `{path} --help` lists all options"
    if isinstance(error, click.MissingParameter):
        return _missing(error, path, ctx)
    if isinstance(error, click.BadOptionUsage) and "requires" in error.message:
        return f"{error.option_name} needs a value; `{path} --help` describes it"
    if isinstance(error, click.BadOptionUsage):
        return f"{_as_sentence(error.message)}; `{path} --help` describes it"
    if isinstance(error, click.BadParameter):
        return _bad_value(error, path)
    text = _as_sentence(error.format_message()).replace("got unexpected", f"`{path}` does not take the")
    return f"{text}; `{path} --help` shows what is allowed"


def _owner(flag: str, ctx: click.Context | None) -> str:
    """Return text that names other commands with this option; empty if there are none."""
    if ctx is None or not flag.startswith("--"):
        return ""
    owners = [f"`{path}`" for path, command in _verbs(ctx.find_root()) if any(flag in p.opts for p in command.params)]
    if not owners:
        return ""
    listed = ", ".join(owners[:_MOST]) + (" and other commands" if len(owners) > _MOST else "")
    return f"; {flag} is an option of {listed}"


def _verbs(ctx: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Yield every command below a group, each with its command line; groups themselves are left out."""
    group = ctx.command
    if not isinstance(group, click.Group):
        return
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if isinstance(command, click.Group):
            yield from _verbs(click.Context(command, info_name=name, parent=ctx))
        elif command is not None:
            yield f"{ctx.command_path} {name}", command


def _near(error: click.NoSuchOption, ctx: click.Context | None) -> str:
    known = [] if ctx is None else [flag for param in ctx.command.get_params(ctx) for flag in param.opts]
    near = nearest(error.option_name, [flag for flag in known if flag.startswith("--")], cutoff=_ALIKE)
    return f"; did you mean {near[0]}?" if near else ""


def _missing(error: click.MissingParameter, path: str, ctx: click.Context | None) -> str:
    param = error.param
    if isinstance(param, click.Option):
        name = f"{param.opts[0]} {_values(param, ctx)}"
    else:
        name = param.make_metavar(ctx) if param is not None and ctx is not None else str(error.param_hint or "argument")
    examples = getattr(ctx.command, "examples", ()) if ctx is not None else ()
    example = f"for example `{examples[0]}`" if examples else f"`{path} --help` describes it"
    return f"`{path}` needs {name}; {example}"


def _values(option: click.Option, ctx: click.Context | None) -> str:
    if isinstance(option.type, click.Choice):
        return "|".join(map(str, option.type.choices))
    return option.make_metavar(ctx) if ctx is not None else "VALUE"


def _bad_value(error: click.BadParameter, path: str) -> str:
    text = error.message.rstrip(".")
    for before, after in _TYPES.items():
        text = text.replace(before, after)
    text = _ABOVE.sub(
        r"is too small: it must be more than \1", _LEAST.sub(r"is too small: it must be at least \1", text)
    )
    param = error.param
    name = (
        max(param.opts, key=len)
        if isinstance(param, click.Option)
        else ""
        if param is None
        else param.human_readable_name
    )
    text += _source(error)
    way_out = "" if ";" in text else f"; `{path} --help` describes it"
    return f"{name or error.param_hint or 'argument'}: {text}{way_out}"


def _source(error: click.BadParameter) -> str:
    """Return text on where a value that was not typed comes from: an environment variable or the settings file."""
    if error.ctx is None or error.param is None or error.param.name is None:
        return ""
    source = error.ctx.get_parameter_source(error.param.name)
    if source is ParameterSource.ENVIRONMENT:
        return f" (from the environment variable {error.param.envvar})"
    return " (from the settings file)" if source is ParameterSource.DEFAULT_MAP else ""


def _as_sentence(text: str) -> str:
    """Return a message of click without its initial capital and final full stop."""
    text = text.strip().rstrip(".")
    return text[:1].lower() + text[1:]
