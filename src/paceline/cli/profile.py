"""``paceline profile``: another profiler window of a run that is going on."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.cli.runs import LAST, find_run, in_runs_folder
from paceline.errors import UsageError
from paceline.explain.ending import RUNNING, ended
from paceline.record import layout
from paceline.record.read import read_run
from paceline.record.write import RUNS


@click.command(name="profile", short_help="Have a run that is going on take another profiler window.")
@in_runs_folder
@click.argument("run", default=LAST)
def command(directory: Path | None, run: str) -> int:
    """Have every training process of a RUN profile its next steps; reports then show that window.

    RUN is the path of a run's folder, a run id, the beginning of one, or `last`. Steps in the window are a little
    slower, and no figure is taken from them.

    \b
    paceline profile
    paceline profile 20261121-0315
    """
    folder = find_run(run, directory or RUNS)
    how = ended(read_run(folder))
    if how != RUNNING:
        raise UsageError(f"run {folder.name} is not going on ({how}); it has no next steps to profile")
    try:
        (folder / layout.PROFILE_FILE).touch()
    except OSError as error:
        raise UsageError(f"cannot write {folder / layout.PROFILE_FILE}: {error.strerror}") from error
    click.echo(f"paceline: asked; in a few steps `paceline report {folder.name}` shows the new window", err=True)
    return 0
