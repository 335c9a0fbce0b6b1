"""The list of runs with one line for each: name, time, how the run ended, verdict, command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.core import units
from paceline.report.words import printable

_HEADS = ("run", "began", "ended", "verdict", "command")
_LEAST_WIDTH = 12  # least width of a column that may be truncated
_NARROW = 90  # on a terminal with fewer columns a run takes two lines


@dataclass(frozen=True, kw_only=True)
class RunLine:
    """One run in the list."""

    run_id: str
    age_s: float
    ended: str
    verdict: str  # empty if unknown
    command: str


def print_runs(lines: Sequence[RunLine], console: Console) -> None:
    """Print the list of runs: fitted to the width of a terminal, otherwise in aligned columns without truncation."""
    rows = [_cells(line) for line in lines]
    if console.is_terminal and console.width < _NARROW:
        for row in rows:
            console.print(_stacked(row, console.width), no_wrap=True, overflow="ellipsis")
        return
    if console.is_terminal:
        console.print(_table(rows))
        return
    widths = [max(len(row[i]) for row in (_HEADS, *rows)) for i in range(len(_HEADS))]
    for row in (_HEADS, *rows):
        text = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        console.print(Text(text.rstrip()), soft_wrap=True)


def _cells(line: RunLine) -> tuple[str, ...]:
    cells = (line.run_id, units.ago(line.age_s), line.ended, line.verdict or "-", line.command)
    return tuple(printable(cell) for cell in cells)


def _stacked(row: Sequence[str], width: int) -> Text:
    """Return a run as two lines, truncated to the terminal's width."""
    run_id, began, ended, verdict, command = row
    lines = [Text.assemble(run_id, "  ", (verdict, "bold")), Text(f"  {began}, {ended}: {command}", style="dim")]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n").join(lines)


def _table(rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for head in _HEADS:
        fixed = head in ("run", "began", "verdict")
        table.add_column(head, no_wrap=True, overflow="ellipsis", min_width=None if fixed else _LEAST_WIDTH)
    for row in rows:
        table.add_row(*(Text(cell, style="bold" if i == 3 else "") for i, cell in enumerate(row)))
    return table
