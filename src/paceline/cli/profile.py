"""``paceline profile``: profile more steps of a run that is still running."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.cli.base.command import Command
from paceline.cli.base.runs import LAST, complete_run, find_run, in_runs_folder
from paceline.core.errors import UsageError
from paceline.record import layout
from paceline.record.write import RUNS


@click.command(
    cls=Command,
    name="profile",
    examples=("paceline profile", "paceline profile 20261121-0315"),
    groups={"Which run": ("--dir",)},
)
@in_runs_folder
@click.argument("run", default=LAST, shell_complete=complete_run)
def command(directory: Path | None, run: str) -> int:
    """Profile a few more steps of a run that is still going.

    RUN is a run id, the beginning of one, the path of a run's folder, `last` (the default), or `last~1` for the run
    before the last. Every training process of the run is profiled. The profiled steps are slightly slower, so they are
    not included in step times. A report shows the newest window.
    """
    from paceline.explain.analysis.ending import RUNNING, ended
    from paceline.record.read import read_run

    folder = find_run(run, directory or RUNS)
    how = ended(read_run(folder))
    if how != RUNNING:
        raise UsageError(
            f"run {folder.name} has ended ({how}), so it has no further steps to profile; `paceline report` lists "
            f"all runs"
        )
    try:
        (folder / layout.PROFILE_FILE).touch()
    except OSError as error:
        raise UsageError(
            f"cannot write {folder / layout.PROFILE_FILE}: {error.strerror}; to profile a run, you need write "
            f"permission for its folder"
        ) from error
    click.echo(
        f"paceline: the run was asked to profile a few steps; when the steps have been profiled, `paceline report "
        f"{folder.name}` "
        f"shows the result",
        err=True,
    )
    return 0
