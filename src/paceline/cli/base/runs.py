"""Finds a run by its path, its id, the beginning of its id, ``last`` or ``last~1``, and lists all runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.core.errors import PacelineError, UsageError, nearest
from paceline.record import layout
from paceline.record.write import RUNS

if TYPE_CHECKING:
    from paceline.record.run import Launch

LAST = "last"
PAGE = "report.html"  # file name in the run's folder
in_runs_folder = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help=f"Look for runs in DIR instead of {RUNS}.",
)

_BEFORE_LAST = re.compile(rf"{LAST}(?:~(\d+))?")
_NAMED = 5  # number of similar runs that an error names


def complete_run(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the runs whose names begin with the given text, newest first, for shell completion."""
    names = [LAST, f"{LAST}~1", *(folder.name for folder in run_folders(ctx.params.get("directory") or RUNS))]
    return [name for name in names if name.startswith(incomplete)]


def run_folders(base: Path) -> list[Path]:
    """Return the folders of the runs in a folder, newest first."""
    try:
        found = [path for path in base.iterdir() if _is_run(path)]
    except OSError:
        return []
    return sorted(found, key=lambda path: (begun_unix_s(path), path.name), reverse=True)


def _is_run(folder: Path) -> bool:
    return (folder / layout.RANKS_DIR).is_dir() or any(folder.glob("launch-*.json"))


def run_before(folder: Path) -> str | None:
    """Return the id of the last earlier run that had the same command and no recipe; None without such a run."""
    commands, begun = _commands(folder), begun_unix_s(folder)
    earlier = (other for other in run_folders(folder.parent) if begun_unix_s(other) < begun)
    return next((o.name for o in earlier if _commands(o) == commands and not _has_recipe(o)), None)


def last_run(command: Sequence[str], base: Path) -> Path | None:
    """Return the folder of the newest run that had this command and no recipe; None without such a run."""
    wanted = [list(command)]
    return next((one for one in run_folders(base) if _commands(one) == wanted and not _has_recipe(one)), None)


def _commands(folder: Path) -> list[list[str]]:
    return [list(launch.command) for launch in _launches(folder)]


def _has_recipe(folder: Path) -> bool:
    return any(launch.recipe is not None for launch in _launches(folder))


def _launches(folder: Path) -> Sequence[Launch]:
    from paceline.record.read import read_launches

    return read_launches(folder)


def begun_unix_s(folder: Path) -> float:
    """Return when a run began, in seconds since 1970; without a launch record, when its folder last changed."""
    try:
        return min(launch.started_unix_s for launch in _launches(folder))
    except (PacelineError, ValueError):
        return folder.stat().st_mtime


def find_run(name: str, base: Path) -> Path:
    """Return the folder of a run.

    Args:
        name: The path of a run folder, a run id or its beginning, ``last``, or ``last~N`` for the Nth run before the
            last one.
        base: The folder that contains runs.

    Raises:
        UsageError: No run matches, or several do.
    """
    given = Path(name)
    if given.is_dir() and _is_run(given):
        return given
    if given.is_file():
        raise UsageError(
            f"{name} is a file, but a run is a folder such as {RUNS}/ID; give the folder or the ID of the run"
        )
    folders = run_folders(base)
    latest = _BEFORE_LAST.fullmatch(name)
    if latest and int(latest[1] or 0) < len(folders):
        return folders[int(latest[1] or 0)]
    fitting = [path for path in folders if path.name == name] or [
        path for path in folders if path.name.startswith(name)
    ]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise UsageError(
            f"the IDs of {len(fitting)} runs begin with {name!r}: {_few(fitting)}; give more characters of the ID"
        )
    if given.is_dir():
        raise UsageError(
            f"{name} is a folder, but contains no run (no launch-*.json and no ranks/); give the folder of one run"
        )
    raise UsageError(f"there is no run {name!r} in {base}{_near(name, folders)}")


def _near(name: str, folders: Sequence[Path]) -> str:
    """Return the end of an error message, which suggests similar run ids, or says how to record or list runs."""
    if not folders:
        return (
            ", which contains no runs; make a run with `paceline run train.py`, or give another folder with --dir DIR"
        )
    by_name = {path.name: path for path in folders}
    within = [path for path in folders if len(name) > 1 and name in path.name]
    near = within or [by_name[one] for one in nearest(Path(name).name, by_name, _NAMED, 0.4)]
    if near:
        return f"; did you mean {_few(near)}?"
    which = "the only run" if len(folders) == 1 else f"all {len(folders)} runs"
    return f"; `paceline report` lists {which}, and --dir DIR looks for runs in another folder"


def _few(folders: Sequence[Path]) -> str:
    names = ", ".join(path.name for path in folders[:_NAMED])
    return names + (f" and {len(folders) - _NAMED} more" if len(folders) > _NAMED else "")
