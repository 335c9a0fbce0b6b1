"""``paceline plan calibrate``: what can this machine do?"""

from __future__ import annotations

import os
import tempfile
from datetime import date
from pathlib import Path

import click

from paceline.cli.files import check_writable

_FILE = click.Path(path_type=Path)


@click.command(name="calibrate", short_help="Measure what this machine can do (also: --calibrate).")
@click.option("--out", type=_FILE, metavar="FILE", help="Write the profile here; default: where --here looks.")
@click.option("--quick", is_flag=True, help="Few sizes and one rank, in about twenty seconds: for a first look.")
@click.option("--storage", type=_FILE, metavar="FOLDER", help="Whose storage is read; default: of temporary files.")
def command(out: Path | None, quick: bool, storage: Path | None) -> int:
    """Measure what this machine can do, in one to three minutes, and write its profile.

    Products of matrices, convolutions, attention and all other operators of real blocks at a grid of sizes; whole
    blocks with their optimizer, for what operators take beside and what a process holds; copies, launches, messages
    among two ranks, storage. Needs torch. Let nothing else run meanwhile: what others used is told.
    """
    from paceline.plan.calibrate.run import FULL, QUICK, calibrate
    from paceline.plan.profile import default_path, write_profile
    from paceline.report import profile_terminal

    path = out or default_path(os.environ)
    if out is not None:
        check_writable(out)
    folder = storage or Path(tempfile.gettempdir())
    check_writable(folder / "profile")
    profile = calibrate(QUICK if quick else FULL, folder, date.today(), lambda what: click.echo(f"  {what}", err=True))
    write_profile(profile, path)
    for line in profile_terminal.lines_of(profile):
        click.echo(line)
    shown = "" if out is None else f" --profile {out}"
    click.echo(f"paceline: wrote {path}; next: paceline plan --here{shown} train.py", err=True)
    return 0
