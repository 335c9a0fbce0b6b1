"""``paceline run``: run a program unchanged, watch it, and report its bottleneck at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from paceline.cli.base.files import to_html, to_json, to_markdown, to_open
from paceline.cli.base.price import by_instance, by_number
from paceline.cli.base.program import ProgramCommand, program_of, takes_program
from paceline.cli.watch import Request, watch
from paceline.core.errors import UsageError
from paceline.core.layout import parse
from paceline.inprocess.recorder.profiler.capture import steps_of
from paceline.train.unmodified.allowed import check_axes, checked


def _steps(ctx: click.Context, parameter: click.Parameter, given: str | None) -> str | None:
    """Return the value of `--profile` if it is valid; raise a UsageError otherwise."""
    if given is not None and steps_of(given) is None:
        raise UsageError(
            f"--profile {given!r} is not a range of steps; give the first and the last step, such as --profile "
            f"10:13, or turn profiling off with --no-profile"
        )
    return given


def _layout(ctx: click.Context, parameter: click.Parameter, given: str | None) -> str | None:
    """Return the value of `--layout` if it is valid; raise a UsageError otherwise."""
    if given is None:
        return None
    check_axes(given)
    return str(checked(parse(given)))


@click.command(
    cls=ProgramCommand,
    name="run",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    examples=(
        "paceline run train.py --epochs 1",
        "paceline run -m package.train --epochs 1",
        "paceline run -- torchrun --nproc-per-node 4 train.py",
        "paceline run --fail-on critical --json run.json train.py",
    ),
    groups={
        "What to watch": ("--profile", "--no-profile", "--target-loss"),
        "How to run": ("--recipe", "--layout"),
        "Price": ("--price", "--instance"),
        "Output": ("--dir", "--run-id", "--json", "--markdown", "--html", "--open", "--fail-on", "--quiet"),
    },
    exit_codes={
        "0": "the program succeeded",
        "1": "the program succeeded, but a finding is at least as severe as the level given with --fail-on",
        "other": "the exit code of the program; 128+N: signal N ended it",
    },
)
@click.option(
    "--recipe", type=click.Path(path_type=Path), metavar="FILE",
    help="Apply the settings of a recipe, a file that `paceline tune` writes.",
)  # fmt: skip
@to_json
@to_markdown
@to_html
@to_open
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write the record of the run to DIR instead of .paceline/runs.",
)
@click.option(
    "--run-id", metavar="ID",
    help="Name of the run. If commands on several hosts have the same ID and the same shared DIR, they are recorded "
        "as one run.",
)  # fmt: skip
@click.option(
    "--layout", callback=_layout, metavar="AXES",
    help="Train a script that was written for one process on several ranks of this machine. Examples: dp=2, shard=2, "
        "or dp=2,shard=2.",
)  # fmt: skip
@by_number
@by_instance
@click.option(
    "--target-loss",
    type=float,
    metavar="LOSS",
    help="Report at which step and time the loss first reached the value LOSS.",
)
@click.option(
    "--profile", "captured", callback=_steps, metavar="FIRST:LAST",
    help="Capture these steps (counted from 0) with PyTorch's profiler on every rank, and analyse the captures.",
)  # fmt: skip
@click.option("--no-profile", is_flag=True, help="Turn off the profiling of a few steps, which is on by default.")
@click.option(
    "--fail-on",
    type=click.Choice(["never", "critical", "warning"]),
    default="never",
    show_default=True,
    help="Exit with code 1 if a finding has at least this severity.",
)
@click.option("-q", "--quiet", is_flag=True, help="Do not print the verdict. Errors are still printed.")
@takes_program
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> int:
    """Run a training program, unchanged, and report what holds it back.

    Output, signal handling and exit code of the program stay the same. The verdict goes to stderr.
    """
    return watch(Request(program=program_of(ctx, options), **options))
