"""Commands that cannot start and programs that end before training: no run is left of them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from paceline.core.errors import UsageError
from paceline.record import layout


def check_command(command: Sequence[str]) -> None:
    """Check that a command exists and may be executed, before a run is made.

    Raises:
        UsageError: It does not, or may not.
    """
    name = command[0]
    if shutil.which(name) is not None:
        return
    path = Path(name)
    if path.is_dir():
        raise UsageError(f"{name} is a folder; give a command after `--`")
    if os.sep in name and path.exists():
        python = f"; for a Python script, leave out `--`: `paceline run {name}`" if path.suffix == ".py" else ""
        raise UsageError(f"{name} is not executable; to make it so, type `chmod +x {name}`{python}")
    raise UsageError(f"command not found: {name!r} is neither a file nor a command on PATH{_way_out(path)}")


def _way_out(path: Path) -> str:
    beside = Path(sys.executable).with_name(path.name)
    if path.suffix == ".py":
        return "; for a Python script, leave out `--`"
    if path.name and os.access(beside, os.X_OK):
        return f"; did you mean {beside}?"
    return "; check the spelling of the command, or activate the environment in which it is installed"


def ended_before_training(folder: Path, exit_code: int) -> bool:
    """Return whether a program failed and none of its processes was seen to train."""
    seen = any((folder / layout.RANKS_DIR).iterdir()) or (folder / layout.WARNED_FILE).exists()
    return exit_code != 0 and not seen and _is_alone(folder)


def _is_alone(folder: Path) -> bool:
    """Return whether a run has one launch only: another host may share its folder."""
    return len(list(folder.glob("launch-*.json"))) == 1


def discard(folder: Path, tag: str) -> None:
    """Remove what one launch left in the folder of a run, and the folder if no other launch shares it."""
    if _is_alone(folder):
        shutil.rmtree(folder, ignore_errors=True)
    else:
        (folder / f"launch-{tag}.json").unlink(missing_ok=True)
