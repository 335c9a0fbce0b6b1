"""The click class of all commands: all have the same layout of `--help`, and `-` as a file name means stdout.

A help page has, in this order: usage, one sentence, examples, options in groups, exit codes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from paceline.cli.base.files import text_results_on_stderr

EXIT_CODES: Mapping[str, str] = {
    "0": "success",
    "2": "usage error, or a problem with a file, a setting or this machine",
    "3": "internal error of Paceline",
}
OUTPUT, OTHER = "Output", "Other"
_OUTPUT_FLAGS = frozenset(
    {"--json", "--markdown", "--html", "--open", "--quiet"}
)  # listed below `Output` in every command that has them
_RANGE = re.compile(r"(?:; )?(?:[\d.]+<=?)?x(?:[<>]=?[\d.]+)?(?=\])")  # how click describes a range of numbers


class Command(click.Command):
    """A command of Paceline.

    Attributes:
        forms: What can follow the command name, one usage line each; empty for click's usual line.
        examples: Working command lines.
        groups: Headings of the help page, each with its flags. Flags for result files need no group.
        exit_codes: Exit codes and their meanings, in addition to `EXIT_CODES`.
    """

    def __init__(
        self,
        *args: Any,
        forms: Sequence[str] = (),
        examples: Sequence[str] = (),
        groups: Mapping[str, Sequence[str]] | None = None,
        exit_codes: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self.forms, self.examples, self.groups = tuple(forms), tuple(examples), dict(groups or {})
        self.exit_codes = all_exit_codes(exit_codes)

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        """Return the names of the help option, the same in every context, because click caches those it sees first."""
        return ["-h", "--help"]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options. A usage error gets the context, so that its message names this command."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; if a result goes to stdout (`--json -`), all other text goes to stderr."""
        with text_results_on_stderr(ctx):
            return super().invoke(ctx)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one usage line for each of the command's forms."""
        write_usage(self, self.forms, ctx, formatter)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help page."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        write_examples(self.examples, formatter)
        self.format_options(ctx, formatter)
        write_exit_codes(self.exit_codes, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options below their headings."""
        write_options(self.get_params(ctx), self.groups, ctx, formatter)


def all_exit_codes(own: Mapping[str, str] | None) -> dict[str, str]:
    """Return all exit codes with their meanings, in order.

    Args:
        own: Exit codes of one command, in addition to `EXIT_CODES`.
    """
    return dict(sorted({**EXIT_CODES, **(own or {})}.items(), key=_order))


def _order(code: tuple[str, str]) -> tuple[bool, int]:
    """Return a sort key that orders exit codes by number, with codes that are words at the end."""
    return (not code[0].isdigit(), int(code[0]) if code[0].isdigit() else 0)


def write_usage(
    command: click.Command, forms: Sequence[str], ctx: click.Context, formatter: click.HelpFormatter
) -> None:
    """Write one usage line for each form."""
    for number, form in enumerate(forms or [" ".join(command.collect_usage_pieces(ctx))]):
        formatter.write_usage(ctx.command_path, form, prefix="Usage: " if number == 0 else "       ")


def write_examples(examples: Sequence[str], formatter: click.HelpFormatter) -> None:
    """Write example command lines without wrapping them."""
    if examples:
        with formatter.section("Examples"):
            for example in examples:
                formatter.write(f"{'':{formatter.current_indent}}{example}\n")


def write_exit_codes(codes: Mapping[str, str], formatter: click.HelpFormatter) -> None:
    """Write the exit codes and their meanings."""
    with formatter.section("Exit codes"):
        formatter.write_dl(list(codes.items()))


def write_options(
    params: Sequence[click.Parameter],
    groups: Mapping[str, Sequence[str]],
    ctx: click.Context,
    formatter: click.HelpFormatter,
) -> None:
    """Write options below their headings, in columns of the same width for the whole command."""
    rows = {heading: list(option_rows(options, ctx)) for heading, options in grouped(params, groups).items()}
    width = min(30, max((len(name) for listed in rows.values() for name, _ in listed), default=0))
    for heading, listed in rows.items():
        if listed:
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), text) for name, text in listed])


def grouped(params: Sequence[click.Parameter], groups: Mapping[str, Sequence[str]]) -> dict[str, list[click.Option]]:
    """Return the options by heading: first the command's own headings, then `Output`, then `Other`."""
    found: dict[str, list[click.Option]] = {heading: [] for heading in (*groups, OUTPUT, OTHER)}
    for option in params:
        if isinstance(option, click.Option):
            found[_heading(option, groups)].append(option)
    for heading, flags in groups.items():
        found[heading].sort(key=lambda option: min(flags.index(flag) for flag in option.opts if flag in flags))
    return found


def _heading(option: click.Option, groups: Mapping[str, Sequence[str]]) -> str:
    own = [heading for heading, flags in groups.items() if set(option.opts) & set(flags)]
    return own[0] if own else OUTPUT if set(option.opts) & _OUTPUT_FLAGS else OTHER


def option_rows(options: Sequence[click.Option], ctx: click.Context) -> Iterator[tuple[str, str]]:
    """Yield the flags and the help text of each option that is not hidden."""
    for option in options:
        record = option.get_help_record(ctx)
        if record is not None:
            yield record[0], _RANGE.sub("", record[1]).replace("  []", "")
