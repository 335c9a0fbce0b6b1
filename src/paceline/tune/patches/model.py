"""A patch: source files, their edits, settings that stay in the recipe, the diff, and writing the changed files."""

from __future__ import annotations

import difflib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paceline.core.errors import EnvironmentFault


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One source file of the program."""

    path: Path  # relative to the working directory
    text: str  # with the file's own line endings
    encoding: str = "utf-8"
    is_script: bool = False  # whether this file is the script that the command starts


@dataclass(frozen=True, kw_only=True)
class UnpatchedSetting:
    """A setting that stays in the recipe, with the reason."""

    setting: str  # such as loader.threads
    why: str


@dataclass(frozen=True, kw_only=True)
class Edited:
    """One source file after its edits."""

    text: str
    placed: frozenset[str]  # settings that the source now has
    stays: Sequence[UnpatchedSetting]


@dataclass(frozen=True, kw_only=True)
class Patch:
    """A recipe as a change of source files."""

    before: Sequence[SourceFile]
    after: Sequence[SourceFile]  # the same files in the same order
    stays: Sequence[UnpatchedSetting]

    @property
    def changed(self) -> list[tuple[SourceFile, SourceFile]]:
        """The changed files, as pairs of the file before and after the patch."""
        return [pair for pair in zip(self.before, self.after, strict=True) if pair[0].text != pair[1].text]


def diff_of(patch: Patch) -> str:
    """Return a patch as a unified diff for ``git apply`` and ``patch -p1``; empty if nothing changes."""
    return "".join(line for before, after in patch.changed for line in _diff(before, after))


def _diff(before: SourceFile, after: SourceFile) -> Iterator[str]:
    path = before.path.as_posix() + (
        "\t" if " " in str(before.path) else ""
    )  # the tab marks the end of a name with spaces
    names = (path, path) if path.startswith("..") else (f"a/{path}", f"b/{path}")
    for line in difflib.unified_diff(_lines(before), _lines(after), *names):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _lines(source: SourceFile) -> list[str]:
    """Return the lines of a file, split at line feeds only as in a diff (`str.splitlines` also splits at others)."""
    mark = "\ufeff" if source.encoding == "utf-8-sig" else ""
    lines = [f"{line}\n" for line in f"{mark}{source.text}".split("\n")]
    return [*lines[:-1], lines[-1][:-1]] if lines[-1] != "\n" else lines[:-1]


def write(patch: Patch, cwd: Path) -> list[tuple[Path, Path]]:
    """Write all files of a patch, or none if one fails. Each old version is saved under a new name beside its file.

    Returns:
        For each written file, its path and that of the saved old version.

    Raises:
        EnvironmentFault: A file cannot be written, or has changed since it was read.
    """
    made: list[Path] = []
    try:
        ready = [_prepared(before, after, cwd, made) for before, after in patch.changed]
    except OSError as error:
        for path in made:
            with suppress(OSError):
                path.unlink()
        raise EnvironmentFault(f"cannot write the patch: {error}; nothing was changed") from error
    for target, new, _ in ready:
        os.replace(new, target)
    return [(Path(os.path.relpath(t, cwd)), Path(os.path.relpath(kept, cwd))) for t, _, kept in ready]


def _prepared(before: SourceFile, after: SourceFile, cwd: Path, made: list[Path]) -> tuple[Path, Path, Path]:
    """Save a copy of a file, and write its new version to a temporary file in the same folder.

    Returns:
        The paths of the file, the new version and the copy. The latter two are also added to `made`.
    """
    target = (cwd / before.path).resolve()
    if target.read_bytes() != before.text.encode(before.encoding):
        raise OSError(f"{before.path} was changed while the patch was made")
    kept = _keep(target)
    made.append(kept)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    made.append(Path(name))
    with os.fdopen(handle, "wb") as file:
        file.write(after.text.encode(after.encoding))
        file.flush()
        os.fsync(file.fileno())
    shutil.copymode(target, name)
    return target, Path(name), kept


def _keep(target: Path) -> Path:
    """Copy a file to ``train.py.orig``, or to ``train.py.orig2`` and so on if that exists; return the path."""
    for number in range(1, 1000):
        kept = target.with_name(f"{target.name}.orig{number if number > 1 else ''}")
        with suppress(FileExistsError):
            with kept.open("xb") as file:
                file.write(target.read_bytes())
            shutil.copystat(target, kept)
            return kept
    raise OSError(f"{target.name}.orig to {target.name}.orig999 exist")
