"""The file `skipped.txt` of a dataset: the samples that a conversion skipped, one per line, each with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paceline.core.files import write_durably

SKIPPED_FILE = "skipped.txt"


def write_skipped(folder: Path, skipped: Sequence[str]) -> None:
    """Write the list of skipped samples; without any, delete an earlier list."""
    if skipped:
        write_durably(folder / SKIPPED_FILE, "".join(f"{one}\n" for one in skipped).encode("utf-8", "backslashreplace"))
    else:
        (folder / SKIPPED_FILE).unlink(missing_ok=True)


def read_skipped(folder: Path) -> list[str]:
    """Return the skipped samples, each with the reason; empty if there is no list."""
    try:
        return (folder / SKIPPED_FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
