"""``paceline run``: start a program as it is, watch it, and say at its end what held it back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from paceline.cli.files import to_html, to_json, to_markdown
from paceline.cli.price import by_instance, by_number
from paceline.cli.program import ProgramCommand, program_of, takes_program
from paceline.cli.watch import Request, watch
from paceline.errors import UsageError
from paceline.observe.probe.capture import steps_of
from paceline.train.layout import parse
from paceline.train.unmodified.allowed import checked


def _steps(ctx: click.Context, parameter: click.Parameter, given: str | None) -> str | None:
    """Check what `--profile` was given."""
    if given is not None and steps_of(given) is None:
        raise UsageError(
            f"--profile {given!r} names no steps; give the first and the last, such as --profile 10:13, "
            "or --no-profile to take no profiler window"
        )
    return given


def _layout(ctx: click.Context, parameter: click.Parameter, given: str | None) -> str | None:
    """Check what `--layout` was given."""
    return None if given is None else str(checked(parse(given)))


@click.command(
    cls=ProgramCommand,
    name="run",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    short_help="Watch an unmodified training program and name what holds it back.",
)
@click.option("--recipe", type=click.Path(path_type=Path), metavar="FILE", help="Run under a recipe that `tune` found.")
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
@click.option(
    "--layout", callback=_layout, metavar="AXES",
    help="Train a script for one process on several ranks of this machine: dp=2, shard=2 or dp=2,shard=2.",
)  # fmt: skip
@by_number
@by_instance
@click.option("--target-loss", type=float, metavar="LOSS", help="Say when this loss was reached.")
@click.option(
    "--profile", "captured", callback=_steps, metavar="FIRST:LAST",
    help="Capture these steps of every rank, counted from 0, and analyse them as `paceline trace` does.",
)  # fmt: skip
@click.option("--no-profile", is_flag=True, help="Take no short profiler window.")
@click.option(
    "--fail-on",
    type=click.Choice(["never", "critical", "warning"]),
    default="never",
    show_default=True,
    help="Exit 1 when the program succeeded but a finding is at least this severe.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print no verdict; errors still show.")
@takes_program
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> int:
    """Run a training program, unchanged, and explain where its time goes.

    \b
    paceline run train.py --its --flags
    paceline run -m package.train --its --flags
    paceline run -- torchrun --nproc-per-node 4 train.py

    Exit code, output and signals are the program's own. The verdict goes to stderr.
    """
    return watch(Request(program=program_of(ctx, options), **options))
