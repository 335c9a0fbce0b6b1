"""A comparison on the terminal: the outcome, a table of before and after, and the reasons."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from functools import partial

from rich.console import Console
from rich.text import Text

from paceline.explain.comparison import METHOD, Comparison
from paceline.report.compare.rows import ComparisonRow, next_command, next_text, reasons, rows
from paceline.report.console import encodable
from paceline.report.words import headline, printable

MAX_WIDTH = 100
LABEL_WIDTH = 9
MARKS = {
    "regression": ("✗", "bold red"),
    "slower": ("▲", "bold yellow"),
    "cannot-tell": ("●", "bold cyan"),
    "same": ("✓", "bold green"),
    "faster": ("✓", "bold green"),
}
_HEADS = ComparisonRow(label="", before="before", after="after", change="change (95% interval)")

Encode = Callable[[str], str]


def render_comparison(comparison: Comparison, console: Console) -> None:
    """Print a comparison: with a table on a terminal, otherwise one line per fact."""
    (_print_rich if console.is_terminal else _print_plain)(comparison, console)


def _print_plain(comparison: Comparison, console: Console) -> None:
    lines = [
        f"compare: {comparison.before.run_id} -> {comparison.after.run_id}",
        f"{comparison.outcome}: {comparison.text}",
        *(_plain_row(row) for row in rows(comparison)),
        *(f"{label}: {text}" for label, text in reasons(comparison)),
        f"method: {METHOD}",
        f"next: {next_command(comparison)}  # {next_text(comparison)}",
    ]
    for line in lines:
        console.print(Text(encodable(printable(line), console=console)), soft_wrap=True)


def _plain_row(row: ComparisonRow) -> str:
    change = f", {row.change}" if row.change else ""
    return f"{row.label}: {row.before} -> {row.after}{change}"


def _print_rich(comparison: Comparison, console: Console) -> None:
    width = min(console.width, MAX_WIDTH)
    encoded: Encode = partial(encodable, console=console)
    mark, style = MARKS[comparison.outcome]
    runs = printable(f"{comparison.before.run_id} → {comparison.after.run_id}")
    blocks = [
        Text(),
        Text.assemble(("paceline", "bold"), ("  " + encoded(runs), "dim")),
        Text(encoded(f"{mark} {comparison.outcome}"), style=style),
        *_sentence(comparison.text, width, encoded),
        Text(),
        *_table(rows(comparison), width, encoded),
        *_labelled(comparison, width, encoded),
        Text(),
    ]
    for block in blocks:
        console.print(block, soft_wrap=True)


def _table(lines: Sequence[ComparisonRow], width: int, encoded: Encode) -> list[Text]:
    """Return the rows as a table, or on two lines each if a table is too wide. Changes within the noise are dim."""
    if not lines:
        return []
    table = [_HEADS, *lines]
    widths = [max(len(cell) for cell in column) for column in zip(*map(_cells, table), strict=True)]
    if sum(widths) + 2 * len(widths) > width:
        return [*(line for row in lines for line in _stacked(row, widths[0], encoded)), Text()]
    found = []
    for row in table:
        *cells, change = (cell.ljust(width) for cell, width in zip(_cells(row), widths, strict=True))
        style = "dim" if row is _HEADS else ""
        shade = "" if row.certain else "dim"
        found.append(Text.assemble(("  " + encoded("  ".join(cells)) + "  ", style), (encoded(change.rstrip()), shade)))
    return [*found, Text()]


def _stacked(row: ComparisonRow, label_width: int, encoded: Encode) -> list[Text]:
    """Return a row on two lines."""
    first = Text(encoded(f"  {row.label.ljust(label_width)}  {row.before} → {row.after}"))
    change = Text(" " * (label_width + 4) + encoded(row.change), style="" if row.certain else "dim")
    return [first, change] if row.change else [first]


def _cells(row: ComparisonRow) -> tuple[str, str, str, str]:
    return row.label, row.before, row.after, row.change


def _labelled(comparison: Comparison, width: int, encoded: Encode) -> list[Text]:
    """Return the labelled sentences of `reasons` as lines; a repeated label is shown once."""
    lines, shown = [], ""
    for label, text in [*reasons(comparison), ("method", METHOD)]:
        lines.append(_indented("" if label == shown else label, printable(text), width, encoded))
        shown = label
    comment = _indented("", f"# {next_text(comparison)}", width, encoded)
    comment.stylize("dim")
    return [
        *lines,
        Text.assemble(("  " + "next".ljust(LABEL_WIDTH), "dim"), (next_command(comparison), "bold")),
        comment,
    ]


def _sentence(text: str, width: int, encoded: Encode) -> list[Text]:
    return [Text("  " + row) for row in textwrap.wrap(encoded(headline(text)), width - 2, break_on_hyphens=False)]


def _indented(label: str, text: str, width: int, encoded: Encode) -> Text:
    """Return text to the right of its label, with all lines indented equally."""
    margin = " " * (LABEL_WIDTH + 2)
    wrapped = textwrap.wrap(encoded(text), max(20, width - len(margin)), break_on_hyphens=False)
    return Text.assemble(("  " + label.ljust(LABEL_WIDTH), "dim"), f"\n{margin}".join(wrapped))
