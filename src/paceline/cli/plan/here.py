"""``paceline plan here``: predict the step time and the memory of a program on this machine."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path
from typing import Any

import click

from paceline.cli.base.command import EXIT_CODES
from paceline.cli.base.files import check_writable, to_json
from paceline.cli.base.outputs import json_text, tell_written, write_text
from paceline.cli.base.program import ProgramCommand, command_line, program_of, takes_program


@click.command(
    cls=ProgramCommand,
    name="here",
    examples=(
        "paceline plan here train.py --epochs 1",
        "paceline plan here --ranks 2 train.py --epochs 1",
        "paceline plan here --profile other.json --json plan.json train.py",
    ),
    groups={"What to predict": ("--profile", "--ranks")},
    exit_codes={"2": f"there is no profile, or a {EXIT_CODES['2']}"},
)
@click.option(
    "--profile",
    "profile_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Use this machine profile, a file that `paceline plan calibrate` wrote. Default: the profile of this machine.",
)
@click.option(
    "--ranks", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
    help="Number of data-parallel replicas. Each replica uses the batch size of the program.",
)  # fmt: skip
@to_json
@takes_program
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> int:
    """Predict the step time and the peak memory of a program on this machine.

    The program runs for two steps on tensors without data (the meta device), and Paceline counts its operators. Nothing
    is trained. The predicted times come from the machine's profile, scaled to the machine's current speed.
    """
    from paceline.monitor.first_step import catch
    from paceline.plan.calibrate.local_prediction import predict_program
    from paceline.plan.calibrate.profile import default_path, is_of_this_machine, profile_doubts, read_profile
    from paceline.plan.calibrate.run import speed_now
    from paceline.report.plan import here_json, here_terminal

    check_writable(options["json_file"])
    program = command_line(program_of(ctx, options))
    path = options["profile_file"] or default_path(os.environ)
    profile = read_profile(path)
    for line in profile_doubts(profile, date.today(), here=options["profile_file"] is None):
        click.echo(f"paceline: {line}", err=True)
    place = profile.place(options["ranks"])
    note = catch(program, {**os.environ, "PACELINE_CATCH_STEP": "1"}).note
    found = predict_program(note, profile, place.ranks, speed_now(place) if is_of_this_machine(profile.made) else None)
    for line in here_terminal.lines_of(found, profile, options["ranks"]):
        click.echo(line)
    if options["json_file"] is not None:
        write_text(options["json_file"], json_text(here_json.to_json(found, profile, options["ranks"])))
        tell_written(options["json_file"])
    return 0
