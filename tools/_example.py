"""A scratch copy of an example, and the environment in which documented commands run there."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHOWN_ROOT = "~/paceline"  # what pages and pictures show in place of the scratch folder

_NOT_COPIED = shutil.ignore_patterns("__pycache__", ".cache", ".paceline", "recipe*.toml", "*.orig")


@contextmanager
def scratch_copy(folder: str) -> Iterator[Path]:
    """Yield a copy of a folder of the checkout, inside a temporary folder that is removed afterwards.

    Args:
        folder: Path of the example, relative to the root of the checkout, such as ``examples/photos``.
    """
    with tempfile.TemporaryDirectory(prefix="paceline-docs-") as base:
        copy = Path(base).resolve() / "paceline" / folder
        shutil.copytree(ROOT / folder, copy, ignore=_NOT_COPIED)
        yield copy


def scratch_root(copy: Path, folder: str) -> Path:
    """Return the folder that stands for the root of the checkout in a scratch copy."""
    return copy.parents[len(Path(folder).parts) - 1]


def environment(copy: Path, **added: str) -> dict[str, str]:
    """Return the environment of a new user: this interpreter's commands first, no settings, no earlier trials."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PACELINE_")}
    commands = Path(sys.executable).parent
    own = {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "XDG_STATE_HOME": str(copy.parent / ".state")}
    return inherited | own | added


def warn_if_busy() -> None:
    """Say so when other programs use this machine, which makes figures poor and searches find less."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > cores / 4:
        print(
            f"the machine is busy (load {load:.1f} on {cores} cores): figures will be poor", file=sys.stderr, flush=True
        )


def hide_paths(text: str, copy: Path, folder: str) -> str:
    """Replace the scratch folder and the environment by the names that pages show."""
    return text.replace(str(scratch_root(copy, folder)), SHOWN_ROOT).replace(sys.prefix, f"{SHOWN_ROOT}/.venv")
