"""A click group whose commands are imported only when they are used, with suggestions for mistyped names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from keyword import iskeyword
from typing import Any

import click
from click.shell_completion import CompletionItem

from paceline.cli.base.command import all_exit_codes, write_examples, write_exit_codes, write_options, write_usage
from paceline.cli.base.settings import (
    defaults_of,
    name_variables,
    settings_map,
    warn_of_misspelled_variables,
)
from paceline.core.errors import UsageError, nearest


class ClosedOutput(Exception):
    """Raised if the reader of the output, such as `head`, has ended."""


class LazyGroup(click.Group):
    """A group of commands.

    Attributes:
        verbs: Names of the commands with one sentence each, in the order of help.
        modules: The prefix of a command's module, such as ``paceline.cli.data.``. If the name of a command is a
            keyword of Python, the name of its module ends in an underscore.
        forms: What can follow the group's name, one usage line each.
        examples: Working command lines.
        exit_codes: Exit codes and their meanings, in addition to `EXIT_CODES`.
    """

    def __init__(
        self,
        *args: Any,
        verbs: Mapping[str, str],
        modules: str,
        forms: Sequence[str] = ("COMMAND [OPTIONS] [ARGS]...",),
        examples: Sequence[str] = (),
        exit_codes: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self.exit_codes = all_exit_codes(exit_codes)
        self.verbs, self.modules, self.forms, self.examples = dict(verbs), modules, tuple(forms), tuple(examples)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; without arguments, show the help."""
        return super().parse_args(ctx, args if args or ctx.resilient_parsing else ["--help"])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command.

        Raises:
            ClosedOutput: The reader of stdout or stderr, such as `head`, has ended.
        """
        with _closed_output():
            return super().invoke(ctx)

    def make_context(self, *args: Any, **settings: Any) -> click.Context:
        """Parse the command line, which also prints help if the command line asks for it.

        Raises:
            ClosedOutput: The reader of stdout or stderr, such as `head`, has ended.
        """
        with _closed_output():
            return super().make_context(*args, **settings)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of help."""
        return list(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, with the user's settings as defaults; None if there is no such command."""
        if cmd_name not in self.verbs:
            return None
        module = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
        command: click.Command = import_module(f"{self.modules}{module}").command
        path = (*_path_of(ctx), cmd_name)
        name_variables(path, command)
        if not isinstance(command, click.Group):
            warn_of_misspelled_variables(path, command, os.environ)
        ctx.default_map = {cmd_name: defaults_of(path, command, settings_map())}
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name.

        Raises:
            UsageError: There is no such command; the message suggests a similar one.
        """
        name = args[0]
        if name in self.verbs or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        path = ctx.command_path
        if ctx.parent is None and name.endswith(".py"):
            raise UsageError(f"{name} is not a command; to watch a script, type `{path} run {name}`")
        near = nearest(name, self.verbs)
        meant = f"did you mean `{path} {near[0]}`?" if near else f"the commands are {', '.join(self.verbs)}."
        raise UsageError(f"there is no command {name!r}; {meant} `{path} --help` describes all commands")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and flags that begin with the given text, without importing the modules of commands."""
        verbs = [CompletionItem(name, help=text) for name, text in self.verbs.items() if name.startswith(incomplete)]
        return [*verbs, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write usage, one sentence, examples, the verbs, the options and the exit codes."""
        write_usage(self, self.forms, ctx, formatter)
        self.format_help_text(ctx, formatter)
        write_examples(self.examples, formatter)
        with formatter.section("Commands"):
            formatter.write_dl(list(self.verbs.items()))
        self.write_own_options(ctx, formatter)
        write_exit_codes(self.exit_codes, formatter)

    def write_own_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of the group itself."""
        write_options(self.get_params(ctx), {}, ctx, formatter)


@contextmanager
def _closed_output() -> Iterator[None]:
    """Replace the error of a closed pipe by `ClosedOutput`, because click and rich would exit with code 1."""
    try:
        yield
    except BrokenPipeError as error:
        raise ClosedOutput from error
    except SystemExit as ending:
        if isinstance(ending.__context__, BrokenPipeError):
            raise ClosedOutput from ending
        raise


def _path_of(ctx: click.Context) -> tuple[str, ...]:
    """Return the names of the groups above a context, without the name of the program."""
    return () if ctx.parent is None else (*_path_of(ctx.parent), str(ctx.info_name))
