"""``paceline plan calibrate``: measure this machine."""

from __future__ import annotations

import os
import tempfile
from datetime import date
from pathlib import Path

import click

from paceline.cli.base.command import Command
from paceline.cli.base.files import FILE_ONLY, check_writable
from paceline.cli.base.progress import Progress
from paceline.core.errors import UsageError


@click.command(
    cls=Command,
    name="calibrate",
    examples=(
        "paceline plan calibrate",
        "paceline plan calibrate --quick",
        "paceline plan calibrate --out machine.json --storage /data",
    ),
    groups={"What to measure": ("--quick", "--storage"), "Output": ("--out",)},
)
@click.option(
    "--out", type=FILE_ONLY, metavar="FILE",
    help="Write the profile to FILE instead of the default path. Without --profile, `paceline plan here` reads the "
        "default path.",
)  # fmt: skip
@click.option(
    "--quick",
    is_flag=True,
    help="Measure only a few sizes and only one rank, in less than a minute. Predictions from such a profile are "
    "less accurate.",
)
@click.option(
    "--storage", type=click.Path(path_type=Path), metavar="FOLDER",
    help="Measure how fast files are read in FOLDER, instead of in the folder for temporary files.",
)  # fmt: skip
def command(out: Path | None, quick: bool, storage: Path | None) -> int:
    """Measure this machine, in one to three minutes, and write its profile for `paceline plan here`.

    The command measures operators at many sizes, whole model blocks with their optimizer, copies, kernel launches,
    messages between two ranks, and storage. It needs torch. Other programs disturb the measurement; the result says how
    many cores they used.
    """
    from paceline.plan.calibrate.profile import default_path, write_profile
    from paceline.plan.calibrate.run import FULL, QUICK, calibrate
    from paceline.report.plan import profile_terminal

    path = out or default_path(os.environ)
    if out is not None:
        check_writable(out)
    folder = storage or Path(tempfile.gettempdir())
    _check_storage(folder)
    with Progress() as progress:
        profile = calibrate(QUICK if quick else FULL, folder, date.today(), progress.update)
    write_profile(profile, path)
    for line in profile_terminal.lines_of(profile):
        click.echo(line)
    shown = "" if out is None else f" --profile {out}"
    click.echo(f"paceline: wrote {path}", err=True)
    click.echo(f"paceline: next: paceline plan here{shown} train.py", err=True)
    return 0


def _check_storage(folder: Path) -> None:
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(
            f"--storage {folder} is not a writable folder; give a folder in which Paceline can write and read a test "
            f"file"
        )
