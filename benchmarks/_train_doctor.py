"""What does train-doctor's `fix` make of a program? A copy of it, with the change that it proved, where there is one.

``fix`` profiles the program, tries what it can apply by itself (loader workers, pinned memory, cuDNN's benchmark) and
with ``--keep`` writes what won into the script.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from _clocked import RunFailed, called

_LIMIT_S = 900.0
_FIX = ("-m", "train_doctor", "fix", "--keep", "--json", "--quiet", "--no-card", "--")


@dataclass(frozen=True, kw_only=True)
class Treated:
    """A program after train-doctor: `changed` is its script, None where nothing was proven to help."""

    changed: Path | None
    said: str
    wall_s: float


def treated(python: str, program: Path, folder: Path) -> Treated:
    """Have train-doctor fix a copy of a program.

    Args:
        python: An interpreter that has train-doctor; the program runs under this one.
        program: The program, which is left alone.
        folder: An empty folder.

    Raises:
        RunFailed: train-doctor failed.
    """
    copy = folder / program.name
    shutil.copy(program, copy)
    done, wall_s = called([python, *_FIX, sys.executable, str(copy)], folder, _LIMIT_S)
    try:
        headline = json.loads(done.stdout)["headline"]
    except (ValueError, KeyError) as error:
        raise RunFailed(f"train-doctor ended with {done.returncode}: {done.stderr.strip()[-300:]}") from error
    same = copy.read_text() == program.read_text()
    return Treated(changed=None if same else copy, said=_short(headline, program), wall_s=wall_s)


def _short(headline: str, program: Path) -> str:
    return headline.removeprefix(f"{program.stem}: ").rstrip(".").replace("|", "/")
