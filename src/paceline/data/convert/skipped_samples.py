"""The samples that a conversion skipped, one on each line with the reason: the file `skipped.txt` of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paceline.core.files import write_durably

SKIPPED_FILE = "skipped.txt"


def write_skipped(folder: Path, skipped: Sequence[str]) -> None:
    """Write which samples were skipped, or remove an earlier list if there are none."""
    if skipped:
        write_durably(folder / SKIPPED_FILE, "".join(f"{one}\n" for one in skipped).encode("utf-8", "backslashreplace"))
    else:
        (folder / SKIPPED_FILE).unlink(missing_ok=True)


def read_skipped(folder: Path) -> list[str]:
    """Return which samples were skipped, each with the reason."""
    try:
        return (folder / SKIPPED_FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
