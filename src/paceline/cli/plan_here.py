"""``paceline plan here``: how long will a step of this program take on this machine, and what will it hold?"""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path
from typing import Any

import click

from paceline.cli.files import check_writable, to_json
from paceline.cli.outputs import json_text, tell_written, write_text
from paceline.cli.program import ProgramCommand, command_line, program_of, takes_program


@click.command(cls=ProgramCommand, name="here", short_help="Predict a program on this machine (also: --here).")
@click.option(
    "--profile",
    "profile_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Of the machine, as --calibrate wrote it; default: this machine's own.",
)
@click.option(
    "--ranks", type=click.IntRange(min=1), default=1, metavar="N", help="Replicas, each with the program's batch."
)
@to_json
@takes_program
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> int:
    """Predict a step of a program, and the memory of its process, from the machine's profile.

    The program is started without values and left after two steps, whose operators are counted; nothing is trained.
    All that follows it is its own. With `--ranks 2` it is predicted as two replicas on this machine, each with the
    batch that was seen. Times are for the machine's speed of now, which is measured at the end, where the profile is of
    this machine.
    """
    from paceline.observe.catch import catch
    from paceline.plan.calibrate.run import speed_now
    from paceline.plan.here import predicted
    from paceline.plan.profile import default_path, doubts, is_of_here, read_profile
    from paceline.report import here_json, here_terminal

    check_writable(options["json_file"])
    program = command_line(program_of(ctx, options))
    path = options["profile_file"] or default_path(os.environ)
    profile = read_profile(path)
    for line in doubts(profile, date.today(), here=options["profile_file"] is None):
        click.echo(f"paceline: {line}", err=True)
    place = profile.place(options["ranks"])
    note = catch(program, {**os.environ, "PACELINE_CATCH_STEP": "1"}).note
    found = predicted(note, profile, place.ranks, speed_now(place) if is_of_here(profile.made) else None)
    for line in here_terminal.lines_of(found, profile, options["ranks"]):
        click.echo(line)
    if options["json_file"] is not None:
        write_text(options["json_file"], json_text(here_json.to_json(found, profile, options["ranks"])))
        tell_written(options["json_file"])
    return 0
