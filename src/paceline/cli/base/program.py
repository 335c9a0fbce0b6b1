"""The program on a command line: a script, ``-m`` and a module, or ``--`` and any command."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from paceline.cli.base.command import Command
from paceline.core.errors import UsageError, nearest

_FORMS = ("[OPTIONS] SCRIPT [ARGS]...", "[OPTIONS] -m MODULE [ARGS]...", "[OPTIONS] -- COMMAND [ARGS]...")
_DATA = (".csv", ".ipynb", ".json", ".md", ".toml", ".txt", ".yaml", ".yml")  # never scripts
PROGRAM = "Program"  # heading of the options that name the program


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program as the command line names it."""

    arguments: tuple[str, ...]
    any_command: bool
    module: str | None


class ProgramCommand(Command):
    """A command whose own options end where the program begins. Any command line is allowed after ``--``."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        settings.setdefault("forms", _FORMS)
        groups = {**(settings.pop("groups", None) or {}), PROGRAM: ("-m",)}
        super().__init__(*args, groups=groups, **settings)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Separate Paceline's options from the program's, and parse Paceline's."""
        end, module = _end_of_options(self, ctx, args)
        ctx.meta["any_command"] = not module and args[end : end + 1] == ["--"]
        program = args[end + 1 :] if ctx.meta["any_command"] else args[end:]
        return super().parse_args(ctx, [*args[:end], "--", *program] if program else args[:end])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return Paceline's flags before the program, and files after it."""
        if ctx.params.get("arguments") or ctx.params.get("module"):
            return [CompletionItem(incomplete, type="file")]
        return super().shell_complete(ctx, incomplete)


class ModelOrProgram(ProgramCommand):
    """A command whose argument is a model or a program. All words after a script or ``-m MODULE`` are the program's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Separate Paceline's options from a program's. Without a program, options can be anywhere."""
        end, module = _end_of_options(self, ctx, args)
        ctx.meta["program"] = module or (end < len(args) and args[end].endswith(".py"))
        if ctx.meta["program"]:
            return super().parse_args(ctx, args)
        ctx.meta["any_command"] = False
        return click.Command.parse_args(self, ctx, args)


def _end_of_options(command: click.Command, ctx: click.Context, args: list[str]) -> tuple[int, bool]:
    """Return how many of the arguments are Paceline's, and whether these end with ``-m MODULE``."""
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
    """Add the parameters that name a program to a command: the option ``-m``, and all other arguments."""
    module = click.option(
        "-m",
        "module",
        metavar="MODULE",
        help="Run a module, as `python -m MODULE` does. The arguments of the module follow its name.",
    )
    metavar = "SCRIPT [ARGS]... | -- COMMAND [ARGS]..."
    arguments = click.argument(
        "arguments", nargs=-1, type=click.UNPROCESSED, metavar=metavar, shell_complete=_complete_file
    )
    return module(arguments(function))


def _complete_file(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Tell the shell to complete the name of a file."""
    return [CompletionItem(incomplete, type="file")]


def program_of(ctx: click.Context, options: dict[str, Any]) -> Program:
    """Return the program that a command's options contain, and remove it from the options."""
    arguments, module = tuple(options.pop("arguments")), options.pop("module")
    return Program(arguments=arguments, any_command=ctx.meta["any_command"], module=module)


def stem_of(program: Program) -> str:
    """Return a short name of the program for folder names: that of its module, or of its file without suffix."""
    return Path(program.module or program.arguments[0]).stem


def start_of(program: Program) -> str:
    """Return the first words of the program as typed: its script, ``-m`` and its module, or ``--`` and a command."""
    if program.module is not None:
        return f"-m {program.module}"
    return f"-- {program.arguments[0]} …" if program.any_command else program.arguments[0]


def typed_options(names: Collection[str]) -> str:
    """Return the options of the current command that the user typed, each with a space after it.

    Args:
        names: The parameter names of the options, such as ``python_sandbox``.
    """
    ctx = click.get_current_context()
    words: list[str] = []
    for option in ctx.command.params:
        name = option.name or ""
        if name in names and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            words += [option.opts[0], *([] if getattr(option, "is_flag", False) else [str(ctx.params[name])])]
    return "".join(f"{shlex.quote(word)} " for word in words)


def command_line(program: Program) -> list[str]:
    """Return the command that starts the program.

    Raises:
        UsageError: No program was given, or the script does not exist.
    """
    arguments = list(program.arguments)
    if program.module is not None:
        return [sys.executable, "-m", program.module, *arguments]
    if not arguments:
        verb = ctx.command_path if (ctx := click.get_current_context(silent=True)) is not None else "paceline run"
        raise UsageError(f"no program was given; name a script (`{verb} train.py`), `-m MODULE` or `-- COMMAND`")
    if program.any_command:
        return arguments
    return [sys.executable, *_checked_script(arguments)]


def misplaced_option(program: Program) -> str | None:
    """Return the first long option of the command that appears among the program's arguments; None without one."""
    ctx = click.get_current_context(silent=True)
    if ctx is None:
        return None
    own = {flag for param in ctx.command.params for flag in param.opts if flag.startswith("--")}
    return next((word for word in program.arguments if word.partition("=")[0] in own), None)


def _checked_script(arguments: list[str]) -> list[str]:
    script = Path(arguments[0])
    if script.is_dir() and not (script / "__main__.py").is_file():
        raise UsageError(f"{script} is a folder without a __main__.py; give the training script in this folder")
    if not script.exists():
        raise UsageError(f"there is no script {arguments[0]!r} (looked in {Path.cwd()}){_hint(script)}")
    if script.suffix in _DATA:
        raise UsageError(f"{script} is not a Python script; give the training script, such as train.py")
    if script.is_file() and not _may_be_python(script):
        raise UsageError(f"{script} is not a Python script; to run any command, type `paceline run -- {arguments[0]}`")
    return arguments


def _may_be_python(script: Path) -> bool:
    """Return whether a file could be a Python script, judged by its name and its first line."""
    try:
        with script.open("rb") as file:
            first = file.readline(256)
    except OSError:
        return True  # Python reports the error
    if first.startswith((b"\x7fELF", b"#!")):
        return b"python" in first and not first.startswith(b"\x7fELF")
    return script.suffix in (".py", ".pyw", ".pyz", ".zip", "") or not os.access(script, os.X_OK)


def _hint(script: Path) -> str:
    """Return text for an error message that suggests a similar script, or says how to run another command."""
    from shutil import which

    folder = script.parent
    near = nearest(script.name, [p.name for p in folder.glob("*.py")]) if folder.is_dir() else []
    if near:
        return f"; did you mean {folder / near[0]}?"
    if which(str(script)):
        return f"; {script} is a command on PATH: type `paceline run -- {script}` and its arguments"
    return "; give the training script, or give a command after `--`"


def check_command(command: Sequence[str]) -> None:
    """Check that a command exists and is executable, before a run is created.

    Raises:
        UsageError: The command does not exist or is not executable.
    """
    name = command[0]
    if shutil.which(name) is not None:
        return
    path = Path(name)
    if path.is_dir():
        raise UsageError(f"{name} is a folder; give a command after `--`")
    if os.sep in name and path.exists():
        python = f"; for a Python script, leave out `--`: `paceline run {name}`" if path.suffix == ".py" else ""
        raise UsageError(f"{name} is not executable; to make it so, type `chmod +x {name}`{python}")
    raise UsageError(f"command not found: {name!r} is neither a file nor a command on PATH{_way_out(path)}")


def _way_out(path: Path) -> str:
    beside = Path(sys.executable).with_name(path.name)
    if path.suffix == ".py":
        return "; for a Python script, leave out `--`"
    if path.name and os.access(beside, os.X_OK):
        return f"; did you mean {beside}?"
    return "; check the spelling of the command, or activate the environment in which it is installed"
