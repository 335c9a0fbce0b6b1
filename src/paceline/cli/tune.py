"""``paceline tune``: try the fixes on a program, keep what measurably helps, write the recipe."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from paceline.cli.files import check_writable, to_json
from paceline.cli.program import ProgramCommand, command_line, program_of, stem_of, takes_program
from paceline.errors import UsageError
from paceline.explain.model import Safety
from paceline.record.write import new_run_id

TUNES = Path(".paceline/tunes")
_CLASSES: tuple[Safety, ...] = ("exact", "numeric", "semantic")
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


class Duration(click.ParamType[float]):
    """A time such as 90s, 10m or 1h; a bare number is seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds."""
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value))
        if found is None or float(found[1]) <= 0:
            self.fail(f"{value!r} is no duration; write 90s, 10m or 1h", param, ctx)
        return float(found[1]) * _UNITS[found[2]]


@click.command(
    cls=ProgramCommand,
    name="tune",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    short_help="Try the fixes on an unmodified program and keep what measurably helps.",
)
@click.option("--budget", type=Duration(), default="10m", show_default=True, help="Time to spend, such as 10m.")
@click.option("--trials", type=click.IntRange(min=1), default=40, show_default=True, help="Trials to make, at most.")
@click.option(
    "--allow",
    type=click.Choice(_CLASSES),
    default="exact",
    show_default=True,
    help="Try also changes that round otherwise (numeric), or that change the mathematics too (semantic).",
)
@click.option(
    "--recipe",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the recipe here; default: recipe.toml, or recipe-2.toml and so on.",
)
@to_json
@click.option("--keep", is_flag=True, help="Keep the folders of all trials, for a look at what a program printed.")
@takes_program
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> int:
    """Try changes on a training program, without a change to it, and keep those that are proven to help.

    \b
    paceline tune train.py --its --flags
    paceline tune --allow numeric --budget 20m train.py
    paceline tune -- torchrun --nproc-per-node 4 train.py

    Each trial runs the first steps of the program in processes of its own; what it writes goes to a folder of the
    trial's. Ctrl-C keeps the best so far. The result goes to stdout.
    """
    program = program_of(ctx, options)
    line = command_line(program)
    recipe_file: Path = options["recipe"] or _free_name()
    check_writable(options["json_file"], recipe_file)
    folder = (TUNES / new_run_id(stem_of(program))).resolve()
    try:
        return _tuned(line, folder, recipe_file, options)
    finally:
        if not options["keep"]:
            shutil.rmtree(folder, ignore_errors=True)


def _tuned(line: list[str], folder: Path, recipe_file: Path, options: dict[str, Any]) -> int:
    from rich.console import Console

    from paceline.cli.outputs import json_text, tell_written, write_text
    from paceline.improve.trials import TrialFailed
    from paceline.improve.tune import Limits, Search
    from paceline.report.tune_json import tuned_json
    from paceline.report.tune_terminal import render

    allowed = _CLASSES[: _CLASSES.index(options["allow"]) + 1]
    limits = Limits(budget_s=options["budget"], trials=options["trials"], allowed=allowed)
    search = Search(line, folder, Path.cwd(), limits, lambda text: click.echo(f"paceline: {text}", err=True))
    try:
        tuned = search.run()
    except TrialFailed as error:
        raise UsageError(f"the program cannot be tuned: {error}") from error
    written = _write_recipe(recipe_file, tuned) if tuned.best else None
    program = shlex.join(line[1:] if line[0] == sys.executable else ["--", *line])
    then = f"paceline run --recipe {written} {program}" if written else f"paceline run {program}"
    render(tuned, recipe_file=written, next_command=then, console=Console(highlight=False))
    if options["json_file"] is not None:
        write_text(options["json_file"], json_text(tuned_json(tuned, written)))
        tell_written(options["json_file"])
    return 0


def _free_name() -> Path:
    """Return a name for the recipe that no file has: somebody may run with one that is there."""
    names = ("recipe.toml", *(f"recipe-{number}.toml" for number in range(2, 1000)))
    return next(path for name in names if not (path := Path(name)).exists())


def _write_recipe(path: Path, tuned: Any) -> str:
    from paceline.cli.outputs import write_text
    from paceline.improve.recipe import to_toml

    write_text(path, to_toml(tuned.best))
    return str(path)
