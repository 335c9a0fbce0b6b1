"""Which run is meant? A path, a run id, the beginning of one, or ``last``; and a list of those that there are."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import click

from paceline.errors import PacelineError, UsageError
from paceline.record import layout
from paceline.record.read import read_launches
from paceline.record.write import RUNS

LAST = "last"
in_runs_folder = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help=f"Look for runs in DIR instead of {RUNS}.",
)

_NAMED = 5  # so many near matches are named in an error


def run_folders(base: Path) -> list[Path]:
    """Return the folders of runs below a folder, newest first."""
    try:
        found = [path for path in base.iterdir() if _is_run(path)]
    except OSError:
        return []
    return sorted(found, key=lambda path: (begun_unix_s(path), path.name), reverse=True)


def _is_run(folder: Path) -> bool:
    return (folder / layout.RANKS_DIR).is_dir() or any(folder.glob("launch-*.json"))


def begun_unix_s(folder: Path) -> float:
    """Return when a run began, in seconds of the wall clock; where its record does not say, when the folder changed."""
    try:
        return min(launch.started_unix_s for launch in read_launches(folder))
    except (PacelineError, ValueError):
        return folder.stat().st_mtime


def find_run(name: str, base: Path) -> Path:
    """Return the folder of the run that is meant.

    Args:
        name: Path of a run folder, a run id, the beginning of one, or ``last``.
        base: Folder that holds runs.

    Raises:
        UsageError: No run fits, or several do.
    """
    given = Path(name)
    if given.is_dir() and _is_run(given):
        return given
    if given.is_file():
        raise UsageError(f"{name} is a file; a run is a folder such as {RUNS}/ID: give that folder, or the ID alone")
    folders = run_folders(base)
    if name == LAST and folders:
        return folders[0]
    fitting = [path for path in folders if path.name == name] or [
        path for path in folders if path.name.startswith(name)
    ]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise UsageError(f"{name!r} begins {len(fitting)} runs: {_few(fitting)}; give more of the id")
    if given.is_dir():
        raise UsageError(
            f"{name} is a folder, but holds no run (no launch-*.json and no ranks/); give the folder of one run"
        )
    raise UsageError(f"there is no run {name!r} in {base}{_near(name, folders)}")


def _near(name: str, folders: Sequence[Path]) -> str:
    """Say what may have been meant, or how to come by a run at all."""
    if not folders:
        return ", nor any other; `paceline run train.py` makes one, and --dir DIR looks elsewhere"
    by_name = {path.name: path for path in folders}
    within = [path for path in folders if len(name) > 1 and name in path.name]
    near = within or [by_name[one] for one in get_close_matches(Path(name).name, by_name, n=_NAMED, cutoff=0.4)]
    if near:
        return f"; near to it: {_few(near)}"
    return f"; `paceline report` lists those that there are ({len(folders)}), and --dir DIR looks elsewhere"


def _few(folders: Sequence[Path]) -> str:
    names = ", ".join(path.name for path in folders[:_NAMED])
    return names + (f" and {len(folders) - _NAMED} more" if len(folders) > _NAMED else "")
