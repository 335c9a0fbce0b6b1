"""``paceline tune``: try remedies on a program, keep those with a measured gain, and write a recipe."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli import patch
from paceline.cli.base.files import FILE, FILE_ONLY, check_writable, opens_page, to_json
from paceline.cli.base.numbers import Duration
from paceline.cli.base.price import by_instance, by_number, price_of
from paceline.cli.base.program import (
    ProgramCommand,
    check_command,
    command_line,
    program_of,
    stem_of,
    takes_program,
    typed_options,
)
from paceline.cli.base.progress import Progress
from paceline.core.errors import EnvironmentFault, PacelineError, UsageError
from paceline.core.recipe import Recipe, recipe_toml
from paceline.core.remedies import SAFETY_CLASSES
from paceline.hardware.operating_system import check_system
from paceline.record.write import RUNS, make_folder, new_run_id
from paceline.tune.trials.processes import signals_as_interrupt, signals_deferred

if TYPE_CHECKING:
    from paceline.explain.next_step import NextStep
    from paceline.tune.search.result import TuneResult

TUNES = Path(".paceline/tunes")
_REPEATED = (  # options that the next search gets too
    "trials",
    "allow_network",
    "python_sandbox",
    "goal",
    "price",
    "instance",
    "verify_quality",
    "recipe",
    "directory",
)
_ENDED_BY_USER = ("SIGINT", "SIGTERM", "SIGHUP")  # signals that do not count as a crash


@click.command(
    cls=ProgramCommand,
    name="tune",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    examples=(
        "paceline tune train.py --epochs 1",
        "paceline tune --allow numeric --budget 20m train.py",
        "paceline tune -- torchrun --nproc-per-node 4 train.py",
        "paceline tune --from recipe.toml --diff train.py",
    ),
    groups={
        "What to try": ("--allow", "--goal", "--price", "--instance", "--verify-quality"),
        "Isolation of trials": ("--allow-network", "--python-sandbox"),
        "Limits": ("--budget", "--trials"),
        "Patch": ("--diff", "--write", "--from", "--no-check"),
        "Output": ("--recipe", "--json", "--html", "--open", "--dir", "--keep"),
    },
    exit_codes={
        "0": "success, even if no change made the program faster",
        "130": "Ctrl-C before the first measurement was complete",
    },
)
@click.option(
    "--budget", type=Duration(), default="10m", show_default=True, metavar="TIME",
    help="Time to spend on trials, such as 90s, 10m or 1h. A trial that has already started is completed.",
)  # fmt: skip
@click.option(
    "--trials", type=click.IntRange(min=1), default=40, show_default=True, metavar="N", help="Maximum number of trials."
)
@click.option(
    "--allow",
    type=click.Choice(SAFETY_CLASSES),
    default="resampled",
    show_default=True,
    help="Changes that tune may try: all safety classes up to this one. exact: training computes the same numbers. "
    "resampled: samples get other random numbers. numeric: numbers are rounded differently, as in bf16. "
    "semantic: the training algorithm changes, as with a larger batch.",
)
@click.option(
    "--allow-network",
    is_flag=True,
    help="Let trials connect to other machines and to services on this one. Without --allow-network, tune does not try "
    "a program that connects to them.",
)
@click.option(
    "--python-sandbox",
    is_flag=True,
    help="Run trials in the sandbox in Python, for programs that fail if the kernel isolates them. The sandbox does "
    "not hold back other programs that the program starts.",
)
@click.option(
    "--goal",
    type=click.Choice(["time", "memory", "cost"]),
    default="time",
    show_default=True,
    help="What tune tries to reduce. The goal `cost` needs --price or --instance.",
)
@by_number
@by_instance
@click.option(
    "--verify-quality",
    is_flag=True,
    help="At the end, train with and without the changes that were kept, each with three random seeds, and compare "
    "the losses.",
)
@click.option(
    "--recipe",
    type=FILE_ONLY,
    metavar="FILE",
    help="Write the recipe (the settings that were kept) to FILE instead of recipe.toml.",
)
@to_json
@click.option("--html", type=FILE, metavar="FILE", help="Write the result to FILE, as one HTML file.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Run the trials in DIR instead of .paceline/tunes.",
)
@click.option("--keep", is_flag=True, help="Keep the folders of all trials, which contain the output of the program.")
@patch.takes_patch
@takes_program
@opens_page("tune")
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> int:
    """Try changes on a training program, without editing it, and keep those with a measured speed-up.

    Each trial runs the first steps of the program in separate processes. Files that a trial writes go to a separate
    folder. Ctrl-C keeps the best result so far. The result goes to stdout.
    """
    program = program_of(ctx, options)
    line = command_line(program)
    if options["from_recipe"] is not None:
        return patch.from_recipe(line, options)
    check_system("paceline tune", "linux")
    if program.any_command:
        check_command(line)
    patch.check(line, options)
    check_writable(options["json_file"], options["html"], options["recipe"] or _free_name())
    with signals_as_interrupt():
        folder = make_folder(options["directory"] or TUNES, new_run_id(stem_of(program))).resolve()
        try:
            return _tuned(line, folder, options)
        finally:
            if not options["keep"]:
                with signals_deferred():
                    shutil.rmtree(folder, ignore_errors=True)


def _tuned(line: list[str], folder: Path, options: dict[str, Any]) -> int:
    from rich.console import Console

    from paceline.explain.next_step import as_typed
    from paceline.report.tune.terminal import render
    from paceline.tune.search.history import TrialHistory, history_file
    from paceline.tune.search.next_step import next_steps
    from paceline.tune.search.search import Search, SearchLimits
    from paceline.tune.trials.blocks import TrialFailed

    allowed = SAFETY_CLASSES[: SAFETY_CLASSES.index(options["allow"]) + 1]
    price, _ = price_of(options["price"], options["instance"])
    if options["goal"] == "cost" and price is None:
        raise UsageError("--goal cost needs a price: give --price USD, or --instance NAME")
    limits = SearchLimits(
        budget_s=options["budget"],
        trials=options["trials"],
        allowed=allowed,
        goal=options["goal"],
        verify_quality=options["verify_quality"],
        price_per_hour=price,
        allows_network=options["allow_network"],
        not_by_kernel="--python-sandbox was given" if options["python_sandbox"] else "",
    )
    try:
        with Progress() as progress, progress.counting_down(limits.budget_s) as tell:
            tuned = Search(line, folder, Path.cwd(), limits, TrialHistory(history_file(os.environ), tell), tell).run()
    except TrialFailed as error:
        raise UsageError(f"the program cannot be tuned: {error}") from error
    except KeyboardInterrupt:
        _tell("interrupted before anything was measured")
        return 130
    found = tuned.best or (tuned.unproven.recipe if tuned.unproven is not None else {})
    written, fault = _write_recipe(options["recipe"], found, proven=bool(tuned.best)) if found else (None, None)
    tuned = replace(tuned, **_last_run(line))
    steps = next_steps(tuned, as_typed(line), written, typed_options(_REPEATED))
    render(tuned, recipe_file=written, steps=steps, console=Console(highlight=False))
    if fault is not None:
        click.echo(recipe_toml(found), nl=False)
    offer = patch.offer(line, tuned.best, tuned.before.findings)
    offer = patch.proven(offer, line, tuned.best, folder, options)
    _write_reports(tuned, written, steps, offer, options)
    patch.show(offer, options)
    if fault is not None:
        raise fault
    return 0


def _last_run(line: list[str]) -> dict[str, Any]:
    """Return fields of the tuning result that come from the program's last recorded run; empty if it is unreadable."""
    from paceline.cli.base.runs import last_run
    from paceline.explain.analysis.ending import ended
    from paceline.explain.comparison import whole_run
    from paceline.record.read import read_run

    try:
        folder = last_run(line, RUNS)
        run = read_run(folder, in_stretches=True) if folder is not None else None
    except (OSError, PacelineError):
        return {}
    if run is None or not run.finished:
        return {}
    failed = any(launch.exit_code != 0 and launch.signal not in _ENDED_BY_USER for launch in run.launches)
    return {"whole_run": whole_run(run), "last_failure": ended(run) if failed else None}


def _write_reports(
    tuned: TuneResult,
    recipe_file: str | None,
    steps: Sequence[NextStep],
    offer: patch.PatchOffer,
    options: dict[str, Any],
) -> None:
    from paceline.cli.base.outputs import json_text, tell_written, write_text
    from paceline.report.tune.html import to_html
    from paceline.report.tune.json import tuned_json

    if options["json_file"] is not None:
        write_text(options["json_file"], json_text({**tuned_json(tuned, recipe_file, steps), **offer.as_json()}))
    if options["html"] is not None:
        page = to_html(tuned, recipe_file=recipe_file, next_command=steps[0].command or "", diff=offer.diff)
        write_text(options["html"], page)
    tell_written(options["json_file"], options["html"])


def _tell(text: str) -> None:
    click.echo(f"paceline: {text}", err=True)


def _free_name(stem: str = "recipe") -> Path:
    """Return a file name for the recipe that does not exist yet, because an existing recipe can be in use."""
    names = (f"{stem}.toml", *(f"{stem}-{number}.toml" for number in range(2, 1000)))
    return next(path for name in names if not (path := Path(name)).exists())


def _claimed_name(stem: str = "recipe") -> Path:
    """Create an empty file with a new name, which no other `tune` can then take for its recipe; return the path."""
    path = _free_name(stem)
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return _claimed_name(stem)
    return path


def _write_recipe(
    given: Path | None, recipe: Recipe, *, proven: bool = True
) -> tuple[str | None, EnvironmentFault | None]:
    """Write a recipe to a file and return its path.

    If it cannot be written, return the error instead; the caller then prints the recipe.

    Args:
        given: The file for a proven recipe; None to choose a file name.
        recipe: The recipe.
        proven: Whether the gain of the recipe is proven. If not, the file name begins with `unproven`, because scripts
            could use a file with the other name.
    """
    from paceline.cli.base.outputs import write_text
    from paceline.explain.next_step import UNPROVEN

    try:
        path = (given or _claimed_name()) if proven else _claimed_name(UNPROVEN)
        comment = "" if proven else "# The gain of this recipe is not proven.\n"
        write_text(path, comment + recipe_toml(recipe))
    except EnvironmentFault as fault:
        return None, fault
    except OSError as error:
        return None, EnvironmentFault(
            f"cannot write the recipe here: {error.strerror or error}; the recipe is printed instead"
        )
    return str(path), None
