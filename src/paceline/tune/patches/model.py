"""The nouns of a patch: source, patch, and what stays in the recipe. Frozen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One file of the program."""

    path: Path  # relative to the working directory
    text: str  # line ends as they are in the file
    encoding: str = "utf-8"
    is_script: bool = False  # the one that is started


@dataclass(frozen=True, kw_only=True)
class UnpatchedSetting:
    """A setting that stays in the recipe, and why."""

    setting: str  # such as loader.threads
    why: str


@dataclass(frozen=True, kw_only=True)
class Edited:
    """One source after the settings of one table."""

    text: str
    placed: frozenset[str]  # settings that the source now has
    stays: Sequence[UnpatchedSetting]


@dataclass(frozen=True, kw_only=True)
class Patch:
    """A recipe as a change to sources."""

    before: Sequence[SourceFile]
    after: Sequence[SourceFile]  # the same files in the same order
    stays: Sequence[UnpatchedSetting]

    @property
    def changed(self) -> list[tuple[SourceFile, SourceFile]]:
        """The files that become others, before and after."""
        return [pair for pair in zip(self.before, self.after, strict=True) if pair[0].text != pair[1].text]
