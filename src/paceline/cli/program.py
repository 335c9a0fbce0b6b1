"""How is a program named on the command line? A script, ``-m`` and a module, or ``--`` and any command."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from paceline.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program, as it was named."""

    arguments: tuple[str, ...]
    any_command: bool
    module: str | None


class ProgramCommand(click.Command):
    """A command whose own options end at the program; a ``--`` before it means: any command line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Part our options from what is the program's, and note whether that follows a ``--``; then parse as usual."""
        end, module = _end_of_options(self, ctx, args)
        ctx.meta["any_command"] = not module and args[end : end + 1] == ["--"]
        program = args[end + 1 :] if ctx.meta["any_command"] else args[end:]
        return super().parse_args(ctx, [*args[:end], "--", *program] if program else args[:end])


class ModelOrProgram(ProgramCommand):
    """A command on a model or on a program: behind a script, and behind ``-m``, all is the program's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Part our options from a program's; without one, options may stand anywhere."""
        end, module = _end_of_options(self, ctx, args)
        ctx.meta["program"] = module or (end < len(args) and args[end].endswith(".py"))
        if ctx.meta["program"]:
            return super().parse_args(ctx, args)
        ctx.meta["any_command"] = False
        return click.Command.parse_args(self, ctx, args)


def _end_of_options(command: click.Command, ctx: click.Context, args: list[str]) -> tuple[int, bool]:
    """Return how many arguments are ours, and whether the last of them name a module: what follows that is its own."""
    takes_value = {
        name
        for option in command.get_params(ctx)
        if isinstance(option, click.Option) and not option.is_flag
        for name in option.opts
    }
    place = 0
    while place < len(args) and args[place].startswith("-") and args[place] not in ("-", "--"):
        name = args[place]
        place = min(place + (2 if name in takes_value else 1), len(args))
        if name.startswith("-m"):
            return place, True
    return place, False


def takes_program(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add what names a program to a verb: the option ``-m`` and all that is not ours."""
    module = click.option(
        "-m", "module", metavar="MODULE", help="A module, as `python -m` takes; what follows is its own."
    )
    metavar = "SCRIPT [ARGS]... | -- COMMAND [ARGS]..."
    arguments = click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar=metavar)
    return module(arguments(function))


def program_of(ctx: click.Context, options: dict[str, Any]) -> Program:
    """Take the program out of a verb's options."""
    arguments, module = tuple(options.pop("arguments")), options.pop("module")
    return Program(arguments=arguments, any_command=ctx.meta["any_command"], module=module)


def stem_of(program: Program) -> str:
    """Return a short name of the program, for folders."""
    return Path(program.module or program.arguments[0]).stem


def command_line(program: Program) -> list[str]:
    """Return the command to start.

    Raises:
        UsageError: Nothing to run, or the script is not there.
    """
    arguments = list(program.arguments)
    if program.module is not None:
        return [sys.executable, "-m", program.module, *arguments]
    if not arguments:
        raise UsageError("nothing to run: give a script (`paceline run train.py`), `-m MODULE`, or `-- COMMAND`")
    if program.any_command:
        return arguments
    return [sys.executable, *_checked_script(arguments)]


def as_typed(command: Sequence[str]) -> str:
    """Return a command as it is typed behind a verb of ours."""
    return shlex.join(command[1:] if command[0] == sys.executable else ["--", *command])


def _checked_script(arguments: list[str]) -> list[str]:
    script = Path(arguments[0])
    if script.is_dir() and not (script / "__main__.py").is_file():
        raise UsageError(f"{script} is a folder without __main__.py; name the training script in it")
    if not script.exists():
        raise UsageError(f"no script {arguments[0]!r} in {Path.cwd()}{_hint(script)}")
    if script.is_file() and not _may_be_python(script):
        raise UsageError(f"{script} is not a Python script; to run any command: paceline run -- {arguments[0]} …")
    return arguments


def _may_be_python(script: Path) -> bool:
    """Say whether a file may be meant for Python: not when its name or its first line says something else."""
    try:
        with script.open("rb") as file:
            first = file.readline(256)
    except OSError:
        return True  # Python will say what is wrong with it
    if first.startswith((b"\x7fELF", b"#!")):
        return b"python" in first and not first.startswith(b"\x7fELF")
    return script.suffix in (".py", ".pyw", ".pyz", ".zip", "") or not os.access(script, os.X_OK)


def _hint(script: Path) -> str:
    """Suggest what may have been meant."""
    from difflib import get_close_matches
    from shutil import which

    folder = script.parent
    near = get_close_matches(script.name, [p.name for p in folder.glob("*.py")], n=1) if folder.is_dir() else []
    if near:
        return f"; did you mean {folder / near[0]}?"
    if which(str(script)):
        return f"; {script} is a program on PATH: write `paceline run -- {script} …`"
    return ""
