"""``paceline run``: start a program as it is, watch it, and say at its end what held it back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from paceline.cli.files import to_html, to_json, to_markdown
from paceline.cli.watch import Request, watch


class RunCommand(click.Command):
    """A command whose own options end at the program; a ``--`` before it means: any command line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Part our options from what is the program's, and note whether that follows a ``--``; then parse as usual."""
        end, module = _end_of_options(self, ctx, args)
        ctx.meta["any_command"] = not module and args[end : end + 1] == ["--"]
        program = args[end + 1 :] if ctx.meta["any_command"] else args[end:]
        return super().parse_args(ctx, [*args[:end], "--", *program] if program else args[:end])


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


@click.command(
    cls=RunCommand,
    name="run",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    short_help="Watch an unmodified training program and name what holds it back.",
)
@click.option("-m", "module", metavar="MODULE", help="Run a module, as `python -m` does; what follows is its own.")
@to_json
@to_markdown
@to_html
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Keep runs in DIR instead of .paceline/runs.",
)
@click.option(
    "--run-id", metavar="ID", help="Name the run; commands on several hosts that share a folder join one run by it."
)
@click.option("--price", type=click.FloatRange(min=0), metavar="USD", help="Price of this machine per hour.")
@click.option("--instance", metavar="NAME", help="Take the price of a cloud instance, such as p5.48xlarge.")
@click.option("--target-loss", type=float, metavar="LOSS", help="Say when this loss was reached.")
@click.option("--profile/--no-profile", default=True, help="Take a short profiler window once in the run.")
@click.option(
    "--fail-on",
    type=click.Choice(["never", "critical", "warning"]),
    default="never",
    show_default=True,
    help="Exit 1 when the program succeeded but a finding is at least this severe.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print no verdict; errors still show.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]... | -- COMMAND [ARGS]...")
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> int:
    """Run a training program, unchanged, and explain where its time goes.

    \b
    paceline run train.py --its --flags
    paceline run -m package.train --its --flags
    paceline run -- torchrun --nproc-per-node 4 train.py

    Exit code, output and signals are the program's own. The verdict goes to stderr.
    """
    return watch(Request(any_command=ctx.meta["any_command"], **options))
